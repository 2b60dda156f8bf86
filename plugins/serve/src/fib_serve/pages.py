"""The pages of the service, under ``/ui``: rendered by the server, useful without JavaScript."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import threading
from collections import Counter
from datetime import datetime, timezone
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Optional, Union
from urllib.parse import parse_qs, quote

import jinja2
from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from markupsafe import Markup

from fib_report.causes import decisive_line, reason_of, without_colours
from fib_report.page.markup import escape
from fib_report.page.payload import ratio_label
from fib_serve.access import COOKIE, require
from fib_serve.records import Role, Task, TaskStatus, Token
from flashinfer_bench import __version__
from flashinfer_bench.data import Evaluation
from flashinfer_bench.data.index import TraceIndex
from flashinfer_bench.errors import DataError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from fib_serve.catalog import DatasetView
    from fib_serve.service import Service
    from fib_serve.store import Store

_COOKIE_DAYS = 30
_FORM_FIELDS = 10
_LINES = 5_000
_COMPARED_LINES = 2_000
_CONTEXT = 3
_SHOWN = 50
_RANKED = 500  # rows of a table
_KEPT = 40  # rendered leaderboards
_EVENTS = 2_000
_rendering = threading.Lock()
# Names of accounts are in pages: no proxy may keep them. If browsers were to tell no referrer, they
# would not tell the origin of a form, either, and it would be refused.
_HEADERS = {"Cache-Control": "private, no-cache", "Referrer-Policy": "same-origin"}
_TITLES = {
    401: "Not signed in",
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    413: "Too large",
    429: "Too many requests",
    503: "Not available now",
}

# ------------------------------------------------------------------------------------ texts


def duration(milliseconds: Optional[float]) -> str:
    """Return a latency with its unit: ``1.5 ms``, ``12 µs``; a dash for None."""
    if milliseconds is None:
        return "–"
    for unit, size in (("s", 1e-3), ("ms", 1.0), ("µs", 1e3)):
        if milliseconds * size >= 0.9995:
            return f"{_digits(milliseconds * size)} {unit}"
    return f"{_digits(milliseconds * 1e6)} ns" if milliseconds else "0"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"


def _ratio(value: Optional[float]) -> str:
    return "–" if not value else ratio_label(value)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.0995 else f"{100 * share:.0f}%"


def _breakable(name: str) -> Markup:
    """Return a name that may break after underscores, slashes and points."""
    parts = re.split(r"(?<=[_/.])", name)
    text = Markup("<wbr>").join(Markup(escape(part)) for part in parts[:60])
    return Markup("<bdi>{}{}</bdi>").format(text, Markup(escape("".join(parts[60:]))))


def _moment(when: Union[float, str, None], *, day: bool = False) -> Markup:
    """Return an element that the script shows in local time, and UTC without it."""
    try:
        if isinstance(when, (int, float)):
            at = datetime.fromtimestamp(when, timezone.utc)
        else:
            at = datetime.fromisoformat(str(when).replace("Z", "+00:00"))
    except ValueError:
        return Markup(escape(str(when or "–")))
    # Traces without a zone are in UTC.
    at = (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    shown = f"{at.day} {at:%b %Y}" if day else f"{at.day} {at:%b %Y, %H:%M}"
    mark = Markup(" data-day") if day else ""
    return Markup('<time datetime="{}"{}>{}</time>').format(f"{at:%FT%TZ}", mark, shown)


def _link(kind: str, name: str, root: str = "/ui", rest: str = "") -> str:
    return f"{root}/{kind}/{quote(name, safe='', errors='replace')}{rest}"


def _safe(value: object) -> object:
    """Show marks that reorder text, and controls, as what they are."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return Markup(escape(str(value))) if is_text else value


# --------------------------------------------------------------------------------- rendering


@cache
def _static() -> dict[str, tuple[bytes, str]]:
    """Return content and type of the files that the pages need, read once."""
    own = files("fib_serve") / "static"
    found = {
        "report.css": (files("fib_report.page") / "page.css", "text/css"),
        "page.css": (own / "page.css", "text/css"),
        "live.js": (own / "live.js", "text/javascript"),
        "icon.svg": (own / "icon.svg", "image/svg+xml"),
    }
    return {name: (file.read_bytes(), kind) for name, (file, kind) in found.items()}


@cache
def _static_address(name: str) -> str:
    """Return an address that changes with the content, so that browsers may keep it."""
    return f"/ui/static/{name}?v={hashlib.sha256(_static()[name][0]).hexdigest()[:12]}"


@cache
def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("fib_serve"),
        autoescape=True,
        auto_reload=False,
        undefined=jinja2.StrictUndefined,
        finalize=_safe,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        duration=duration,
        ratio=_ratio,
        percent=_percent,
        breakable=_breakable,
        moment=_moment,
        day=lambda when: _moment(when, day=True),
    )
    found.globals.update(static=_static_address, link=_link, version=__version__)
    return found


def _part(template: str, **values: object) -> Markup:
    return Markup(_templates().get_template(template).render(**values))


def _page(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    who = {"token": request.scope.get("fib_token"), "signed_in": COOKIE in request.cookies}
    content = _part(template, **{"view": "", "title": "", "refresh": False, **who, **values})
    return HTMLResponse(content, status, headers=_HEADERS)


def _refused(request: Request, error: HTTPException) -> Response:
    if error.status_code == 401:
        place = f"?next={quote(request.url.path)}" if request.method == "GET" else ""
        return RedirectResponse(f"/ui/sign-in{place}", 303)
    title = _TITLES.get(error.status_code, "That did not work")
    told = {"title": title, "detail": error.detail}
    page = _page(request, "error.html", status=error.status_code, **told)
    page.headers.update(error.headers or {})
    return page


class PageRoute(APIRoute):
    """A route whose errors are pages, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except HTTPException as error:
                return _refused(request, error)
            except StorageError as error:
                return _refused(request, HTTPException(503, error.message))

        return answer


router = APIRouter(prefix="/ui", route_class=PageRoute, include_in_schema=False)
Reader = Annotated[Token, Depends(require(Role.READER))]
Submitter = Annotated[Token, Depends(require(Role.SUBMITTER))]


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


def _store(request: Request) -> Store:
    return _service(request).store


def _catalog(request: Request) -> DatasetView:
    return _service(request).catalog


def _missing(what: str, name: str, where: str) -> HTTPException:
    return HTTPException(404, f"There is no {what} {name!r}. {where}")


async def _form(request: Request) -> dict[str, str]:
    text = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=_FORM_FIELDS)
    except ValueError:
        raise HTTPException(400, f"A form has at most {_FORM_FIELDS} fields.") from None
    return {name: values[-1] for name, values in fields.items()}


Form = Annotated[dict[str, str], Depends(_form)]

# ------------------------------------------------------------------------------- leaderboards


def _rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of a leaderboard with a text for the rank: ``=2`` if others have it, too."""
    return [{**row, "place": f"{'=' * row['tied']}{row['rank'] or '–'}"} for row in rows]


def _by(
    rows: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], str]
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _setting(row: Mapping[str, Any]) -> str:
    """Name what rows have in common that are ranked together."""
    how = ", ".join(filter(None, (row["timer"], row["cache"] and f"{row['cache']} cache")))
    return f"{row['hardware']} ({how})" if how else str(row["hardware"])


def _kept(request: Request, name: str, rows: object, render: Callable[[], Markup]) -> Markup:
    """Return a rendered part; it is made anew when the catalog has made its rows anew.

    One request does so. Others get what was there before; at first they wait.
    """
    kept = _service(request).rendered
    if len(kept) > _KEPT:
        kept.clear()
    known = kept.get(name)
    if (known is None or known[0] is not rows) and _rendering.acquire(blocking=known is None):
        try:
            known = kept.get(name)
            if known is None or known[0] is not rows:
                known = kept[name] = (rows, render())
        finally:
            _rendering.release()
    assert known is not None
    return known[1]


def _overall(catalog: DatasetView, rows: Iterable[Mapping[str, Any]]) -> Markup:
    by_definition = _by(_rows(rows), lambda row: str(row["definition"]))
    sections = []
    for definition in catalog.definitions():
        known = by_definition.get(definition.name, [])
        count = len({row["solution"] for row in known})
        note = f"{count} solution{'' if count == 1 else 's'}" if known else "no results"
        best = [row for row in known if row["rank"] == 1]
        sections.append((definition.name, {"rows": best, "note": note}))
    return _part("overall.html", sections=sections)


def _ranking(rows: Iterable[Mapping[str, Any]]) -> Markup:
    groups = [
        (setting, some[:_RANKED], len(some[_RANKED:]))
        for setting, some in _by(_rows(rows), _setting).items()
    ]
    return _part("ranking.html", groups=groups)


@router.get("")
def home(request: Request, token: Reader) -> HTMLResponse:
    """Show the best solutions of all definitions."""
    catalog = _catalog(request)
    rows = catalog.leaderboard(None)
    board = _kept(request, "", rows, lambda: _overall(catalog, rows))
    return _page(request, "home.html", view="leaderboard", title="Leaderboard", board=board)


@router.get("/definitions/{name:path}")
def show_definition(request: Request, name: str, token: Reader) -> HTMLResponse:
    """Show a definition and how its solutions rank."""
    catalog = _catalog(request)
    definition = catalog.definition(name)
    if definition is None:
        raise _missing("definition", name, "The leaderboard lists all.")
    rows = catalog.leaderboard(name)
    visible = [
        {"uuid": one.uuid, "label": _axes(one.axes)}
        for one in catalog.workloads(name)
        if _service(request).may_see(token, one.uuid)
    ]
    return _page(
        request, "definition.html", view="definition", title=name, definition=definition,
        board=_kept(request, name, rows, lambda: _ranking(rows)), workloads=visible,
        reference=[_file("reference.py", definition.reference)],
    )  # fmt: skip


# ----------------------------------------------------------------------------------- solutions


def _file(path: str, text: str) -> dict[str, Any]:
    lines = text.splitlines()
    return {"path": path, "lines": lines[:_LINES], "more": max(len(lines) - _LINES, 0)}


@lru_cache(maxsize=64)
def difference(first: str, second: str) -> Optional[list[tuple[str, str]]]:
    """Compare two texts.

    Parameters
    ----------
    first, second : str
        The texts.

    Returns
    -------
    list of (str, str), optional
        Kind (``added``, ``removed``, ``same`` or ``gap``) and text of lines near a difference;
        None if they are too long to be compared while someone waits.
    """
    before, after = first.splitlines(), second.splitlines()
    if max(len(before), len(after)) > _COMPARED_LINES:
        return None
    kinds = {"+": "added", "-": "removed", " ": "same"}
    found: list[tuple[str, str]] = []
    for line in list(difflib.unified_diff(before, after, n=_CONTEXT, lineterm=""))[2:]:
        if line.startswith("@@"):
            if not line.startswith(("@@ -1,", "@@ -0,0")):
                found.append(("gap", "⋯"))
        else:
            found.append((kinds[line[0]], f"{line[0]} {line[1:]}"))
    return found


def _differences(
    best: Mapping[str, str], mine: Mapping[str, str]
) -> list[tuple[str, Optional[list[tuple[str, str]]]]]:
    if len(best) == len(mine) == 1:  # then their names may differ
        ((path, text),), (other,) = mine.items(), best.values()
        return [(path, difference(other, text))]
    paths = dict.fromkeys((*mine, *best))
    return [(path, difference(best.get(path, ""), mine.get(path, ""))) for path in paths]


@router.get("/solutions/{name:path}")
def show_solution(request: Request, name: str, token: Reader) -> HTMLResponse:
    """Show a solution: its rank, evaluations, sources and difference to the best one."""
    catalog = _catalog(request)
    solution = catalog.solution(name)
    if solution is None:
        raise _missing(
            "solution", name, "Those that wait in the queue are here after their first evaluation."
        )
    rows = _rows(catalog.leaderboard(solution.definition))
    mine = [row for row in rows if row["solution"] == name]
    first = {row["solution"] for row in rows if row["rank"] == 1}
    best = None if name in first else next(iter(sorted(first)), None)
    texts = {file.path: file.content for file in solution.sources}
    against = catalog.solution(best) if best else None
    theirs = {file.path: file.content for file in against.sources} if against else None
    found = _store(request).tasks(definition=solution.definition, limit=1_000)
    return _page(
        request, "solution.html", view="solution", title=name, solution=solution,
        rows=mine, is_best=name in first, best=best if against else None,
        difference=_differences(theirs, texts) if theirs is not None else [],
        history=_history(request, solution.definition, name, token),
        tasks=[task for task in found if task.solution == name][:_SHOWN],
        files=[_file(path, text) for path, text in texts.items()],
    )  # fmt: skip


def _history(
    request: Request, definition: str, solution: str, token: Token
) -> list[dict[str, Any]]:
    """Return the evaluations of a solution, newest first; hidden workloads without figures."""
    try:
        rows = TraceIndex.open(_catalog(request).root).rows(definition)
    except DataError:  # a file was replaced just now
        return []
    mine = [row for row in rows if row.solution == solution]
    found = []
    for row in sorted(mine, key=lambda one: one.timestamp, reverse=True)[: 4 * _SHOWN]:
        sees = _service(request).may_see(token, row.workload)
        found.append(
            {
                "date": row.timestamp,
                "label": _axes(row.axes) if sees else "hidden workload",
                "status": row.status.value,
                "latency": row.latency_ms if sees else None,
                "speedup": row.speedup if sees else None,
                "hardware": row.hardware,
            }
        )
    return found


def _axes(axes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in axes.items()) or "fixed size"


# --------------------------------------------------------------------------------------- tasks


def _reason(evaluation: dict[str, Any]) -> str:
    try:
        return reason_of(Evaluation.model_validate_json(json.dumps(evaluation)))
    except ValueError:  # of another release
        return decisive_line(str(evaluation.get("log") or ""))


def _results(request: Request, task: Task, token: Token) -> list[dict[str, Any]]:
    """Return what is known of each workload of a task, in the order of evaluation."""
    store, catalog = _store(request), _catalog(request)
    known = {result.workload: result for result in store.results(task.id)}
    stages: dict[str, str] = {}
    if not task.status.final:
        for event in store.events(store.last_event() - _EVENTS, task=task.id, limit=_EVENTS):
            if event.kind == "stage":
                stages[event.data["workload"]] = event.data["stage"]
    found = []
    for uuid in task.workloads:
        row: dict[str, Any] = dict.fromkeys(
            ("uuid", "status", "latency", "speedup", "reason", "log", "stage")
        )
        found.append(row)
        result, sees = known.get(uuid), _service(request).may_see(token, uuid)
        evaluation = (result.trace or {}).get("evaluation") or {} if result else {}
        row["status"] = evaluation.get("status") or ("not evaluated" if result else None)
        row["stage"] = "not evaluated" if task.status.final else stages.get(uuid)
        row["label"] = "hidden workload"
        if not sees:
            continue
        place = catalog.workload(uuid)
        row.update(uuid=uuid, label=_axes(place[1].axes) if place else "workload")
        if result is None:
            continue
        speed = evaluation.get("performance") or {}
        row.update(latency=speed.get("latency_ms"), speedup=speed.get("speedup_factor"))
        if row["status"] != "PASSED":
            row["reason"] = result.note or _reason(evaluation)
            row["log"] = without_colours(str(evaluation.get("log") or ""))
    return found


def _may_change(task: Task, token: Token) -> bool:
    own = task.owner == token.name and token.role.allows(Role.SUBMITTER)
    return own or token.role is Role.ADMIN


@router.get("/tasks/{task_id}")
def show_task(request: Request, task_id: str, token: Reader) -> HTMLResponse:
    """Show where a task is and its results so far."""
    task = _store(request).task(task_id)
    if task is None:
        raise _missing("task", task_id, "The queue lists the latest ones.")
    results = _results(request, task, token)
    action = "cancel"
    if task.status.final:
        action = "" if task.status is TaskStatus.COMPLETED else "retry"
    sources = _store(request).solution_of(task.id).get("sources") or []
    return _page(
        request, "task.html", view="task", title=task.solution, task=task,
        results=results, done=sum(one["status"] is not None for one in results),
        position=_store(request).position(task.id), refresh=not task.status.final,
        action=action if _may_change(task, token) else "",
        files=[_file(one["path"], one["content"]) for one in sources],
    )  # fmt: skip


@router.post("/tasks/{task_id}/cancel")
def cancel_task(request: Request, task_id: str, token: Submitter) -> Response:
    """Cancel a task that waits or runs."""
    return RedirectResponse(_link("tasks", _service(request).cancel(task_id, token).id), 303)


@router.post("/tasks/{task_id}/retry")
def retry_task(request: Request, task_id: str, token: Submitter) -> Response:
    """Put a failed or cancelled task back into the queue."""
    return RedirectResponse(_link("tasks", _service(request).retry(task_id, token).id), 303)


def _in_turn(tasks: Iterable[Task]) -> list[Task]:
    """Return waiting tasks as they are likely to be begun: by priority, then owners in turn."""
    turns: Counter[tuple[int, str]] = Counter()
    keyed = []
    for task in sorted(tasks, key=lambda one: one.created):
        turn = turns[task.priority, task.owner] = turns[task.priority, task.owner] + 1
        keyed.append((-task.priority, turn, task.created, task))
    return [key[-1] for key in sorted(keyed, key=lambda key: key[:3])]


@router.get("/queue")
def show_queue(request: Request, token: Reader) -> HTMLResponse:
    """Show what is evaluated, what waits and what is done."""
    store = _store(request)
    counts = store.counts()
    waiting = _in_turn(store.tasks(status=TaskStatus.PENDING, limit=1_000))[:_SHOWN]
    done = [task for task in store.tasks(limit=4 * _SHOWN) if task.status.final]
    done.sort(key=lambda task: task.finished or 0.0, reverse=True)
    supervisor = _service(request).supervisor
    return _page(
        request, "queue.html", view="queue", title="Queue", refresh=True,
        counts=[(status.value, count) for status, count in counts.items()],
        workers=supervisor.workers if supervisor is not None else [],
        running=store.tasks(status=TaskStatus.RUNNING, limit=_SHOWN), pending=waiting,
        hidden_count=counts[TaskStatus.PENDING] - len(waiting), finished=done[: _SHOWN // 2],
    )  # fmt: skip


# ------------------------------------------------------------------------- submit and sign in


def _submit_page(
    request: Request, form: Mapping[str, str], error: str = "", status: int = 200
) -> HTMLResponse:
    return _page(
        request, "submit.html", status=status, view="submit", title="Submit a solution",
        error=error, text=form.get("solution", "").replace("\r\n", "\n"), force="force" in form,
        priority=form.get("priority", "0"),
    )  # fmt: skip


@router.get("/submit")
def show_form(request: Request, token: Submitter) -> HTMLResponse:
    """Show the form for a solution."""
    return _submit_page(request, {})


@router.post("/submit")
def submit(request: Request, token: Submitter, form: Form) -> Response:
    """Take a solution from the form, as ``POST /evaluate`` does."""
    try:
        solution = json.loads(form.get("solution", ""))
        if not isinstance(solution, dict):
            raise HTTPException(422, "A solution is an object: {…}.")
        task = _service(request).submit(
            token, solution, priority=int(form.get("priority") or 0), force="force" in form
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        return _submit_page(request, form, f"That is no JSON: {error.msg} at {place}.", 400)
    except (ValueError, RecursionError):
        error_text = "The priority is a whole number, and JSON is not nested a thousand times."
        return _submit_page(request, form, error_text, 400)
    except HTTPException as error:
        return _submit_page(request, form, str(error.detail), error.status_code)
    return RedirectResponse(_link("tasks", task.id), 303)


def _inside(place: str) -> str:
    """Return a page of ours to go to, whatever the address says."""
    return place if re.fullmatch(r"/ui(/[\w./%-]*)?", place) else "/ui"


def _sign_in_page(request: Request, place: str, error: str = "", status: int = 200) -> HTMLResponse:
    return _page(
        request, "sign_in.html", status=status, view="sign-in", title="Sign in",
        error=error, next=_inside(place),
    )  # fmt: skip


@router.get("/sign-in")
def show_sign_in(request: Request) -> HTMLResponse:
    """Ask for a token."""
    return _sign_in_page(request, request.query_params.get("next", ""))


@router.post("/sign-in")
def sign_in(request: Request, form: Form) -> Response:
    """Keep a token in a cookie that scripts cannot read."""
    secret, place = form.get("token", "").strip(), form.get("next", "")
    if _store(request).verify(secret) is None:
        error = "This token is unknown, expired or revoked. Ask for a new one."
        return _sign_in_page(request, place, error, 401)
    answer = RedirectResponse(_inside(place), 303)
    answer.set_cookie(
        COOKIE, secret, max_age=_COOKIE_DAYS * 86_400, httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


@router.post("/sign-out")
def sign_out() -> Response:
    """Forget the token."""
    answer = RedirectResponse("/ui/sign-in", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@router.get("/static/{name}")
def static_file(name: str) -> Response:
    """Send a stylesheet, a script or the icon."""
    if name not in _static():
        raise _missing("file", name, "The pages link to those that exist.")
    content, kind = _static()[name]
    keep = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(content, media_type=kind, headers=keep)


@router.get("/{rest:path}")
def unknown_page(rest: str, token: Reader) -> Response:
    """Say that there is no such page."""
    raise _missing("page", f"/ui/{rest}", "Follow a link above.")
