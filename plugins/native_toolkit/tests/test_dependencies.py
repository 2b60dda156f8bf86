"""Native libraries: found in toolkits, wheels and checkouts that look like the real ones."""

import importlib.util

import pytest

from fib_native_toolkit import dependencies, find_dependencies
from flashinfer_bench.errors import CapabilityError

REAL_FIND_SPEC = importlib.util.find_spec

VERSIONS = {
    "include/cublas_api.h": "#define CUBLAS_VER_MAJOR 13\n#define CUBLAS_VER_MINOR 1\n"
    "#define CUBLAS_VER_PATCH 0\n#define CUBLAS_VER_BUILD 7\n",
    "include/cudnn_version.h": "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 12\n"
    "#define CUDNN_PATCHLEVEL 0\n",
    "include/cutlass/version.h": "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n"
    "  #define CUTLASS_PATCH 1\n",
}
VARIABLES = (
    *("CUBLAS_PATH", "CUDNN_PATH", "CUDNN_HOME", "CUDNN_ROOT"),
    *("CUTLASS_PATH", "CUTLASS_DIR", "CUTLASS_HOME", "CUTLASS_ROOT"),
)


def fill(root, *files):
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(VERSIONS.get(name, ""))
    return root


CUBLAS = ("include/cublas_v2.h", "include/cublas_api.h")
CUDNN = ("include/cudnn.h", "include/cudnn_version.h")
CUTLASS = ("include/cutlass/cutlass.h", "include/cutlass/version.h")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path):
    """Hide what this machine has."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(dependencies, "_SYSTEM", (str(tmp_path / "usr"),))
    monkeypatch.setattr(dependencies, "cuda_home", no_cuda)
    monkeypatch.setattr(dependencies.importlib.util, "find_spec", lambda name: None)


def no_cuda():
    raise CapabilityError("nvcc not found")


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    root = tmp_path / "cuda"
    root.mkdir()
    monkeypatch.setattr(dependencies, "cuda_home", lambda: root)
    return root


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages."""
    monkeypatch.setattr(dependencies.importlib.util, "find_spec", REAL_FIND_SPEC)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


def only(names):
    found, ignored = find_dependencies(names)
    assert ignored == []
    (dependency,) = found
    return dependency


@pytest.mark.parametrize("package", ["cublas", "cu13"])
def test_cublas_as_pip_installs_it(site, package):
    root = site / "nvidia" / package
    fill(root, *CUBLAS, "lib/libcublas.so.13", "lib/libcublasLt.so.13")
    found = only(["cublasLt"])
    assert found.libraries == (":libcublas.so.13", ":libcublasLt.so.13")
    assert found.link_flags() == [
        f"-L{root}/lib",
        f"-Wl,-rpath,{root}/lib",
        "-l:libcublas.so.13",
        "-l:libcublasLt.so.13",
    ]


class TestCudnn:
    def test_the_variable_goes_first(self, toolkit, tmp_path, monkeypatch):
        fill(toolkit, *CUDNN, "lib64/libcudnn.so")
        fill(tmp_path / "mine", *CUDNN, "lib/libcudnn.so.9", "lib/libcudnn.so.9.12.0")
        assert only(["cudnn"]).libraries == ("cudnn",)
        monkeypatch.setenv("CUDNN_PATH", str(tmp_path / "mine"))
        assert only(["cudnn"]).libraries == (":libcudnn.so.9",)
        assert only(["cudnn"]).version == "9.12.0"

    def test_what_was_searched_is_told(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDNN_HOME", str(tmp_path / "nowhere"))
        with pytest.raises(CapabilityError) as caught:
            find_dependencies(["cudnn"])
        assert caught.value.message == (
            f"cudnn not found: no cudnn.h with its libraries in $CUDNN_HOME ({tmp_path}/nowhere), "
            f"the CUDA toolkit, the Python package nvidia, {tmp_path}/usr"
        )
        assert "pip install nvidia-cudnn" in caught.value.hint


@pytest.mark.parametrize("variable", [v for v in VARIABLES if v.startswith("CUTLASS")])
def test_a_checkout_of_cutlass(tmp_path, monkeypatch, variable):
    root = fill(tmp_path / "cutlass", *CUTLASS, "tools/util/include/cutlass/util/x.h")
    monkeypatch.setenv(variable, str(root))
    found = only(["CUTLASS"])
    assert found.version == "4.2.1"
    assert found.include_paths == (f"{root}/include", f"{root}/tools/util/include")
    assert found.library_paths == found.libraries == ()
    assert found.link_flags() == []
    assert found.include_flags() == [
        *("-isystem", f"{root}/include"),
        *("-isystem", f"{root}/tools/util/include"),
    ]


@pytest.mark.parametrize("text", ["cutlass>=5", "cutlass < 4", "CUTLASS ~= 3.1"])
def test_versions_that_do_not_fit(tmp_path, monkeypatch, text):
    monkeypatch.setenv("CUTLASS_PATH", str(fill(tmp_path / "c", *CUTLASS)))
    with pytest.raises(CapabilityError, match=r"found cutlass 4\.2\.1") as caught:
        find_dependencies([text])
    assert repr(text) in caught.value.message
