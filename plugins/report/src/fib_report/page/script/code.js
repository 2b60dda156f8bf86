// Source files with simple highlighting, and differences of two files.

const WORDS = new Set((
  "and as assert async await auto bool break case catch char class const constexpr continue def default del do double elif else enum "
  + "except extern False finally float for from global if import in inline int is lambda long namespace None not or pass private public "
  + "raise return short signed sizeof static struct switch template this True try typedef typename uint8_t uint32_t unsigned using "
  + "virtual void volatile while with yield int32_t int64_t size_t __global__ __device__ __shared__ __restrict__ __host__"
).split(" "));

const C_LIKE = /\.(c|cc|cpp|cxx|cu|cuh|h|hpp)$/i;
const PIECES = {
  c: /(?<comment>\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|(?<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?<word>[A-Za-z_]\w*)|(?<figure>\b\d[\w.]*)/g,
  python: /(?<comment>#[^\n]*)|(?<string>"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?<word>[A-Za-z_]\w*)|(?<figure>\b\d[\w.]*)/g,
};

const MOST_COLOURED = 40_000; // characters; larger files are not highlighted

const highlighted = (text, path) => {
  if (text.length > MOST_COLOURED) return [text];
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(PIECES[C_LIKE.test(path) ? "c" : "python"])) {
    const { comment, string, word } = found.groups;
    if (word && !WORDS.has(word)) continue;
    if (found.index > end) parts.push(text.slice(end, found.index));
    parts.push(make("span", { class: comment ? "code-comment" : string ? "code-string" : word ? "code-word" : "code-figure" }, found[0]));
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)];
};

const codeBlock = (text, path) => make("pre", { class: "code", tabindex: "0", "aria-label": path }, highlighted(text, path));

const MOST_CELLS = 4_000_000; // of the table of longest common subsequences

// [[sign, line], …]: " " for lines in both, "-" in the first only, "+" in the second only.
const differenceOf = (first, second) => {
  let start = 0;
  while (start < Math.min(first.length, second.length) && first[start] === second[start]) start++;
  let end = 0;
  while (end < Math.min(first.length, second.length) - start && first[first.length - 1 - end] === second[second.length - 1 - end]) end++;
  const a = first.slice(start, first.length - end), b = second.slice(start, second.length - end);
  const same = (lines) => lines.map((text) => [" ", text]);
  const lines = same(first.slice(0, start));
  if (a.length * b.length > MOST_CELLS) lines.push(...a.map((text) => ["-", text]), ...b.map((text) => ["+", text]));
  else {
    const wide = b.length + 1, lengths = new Uint16Array((a.length + 1) * wide);
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) {
        lengths[i * wide + j] = a[i] === b[j] ? lengths[(i + 1) * wide + j + 1] + 1
          : Math.max(lengths[(i + 1) * wide + j], lengths[i * wide + j + 1]);
      }
    }
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { lines.push([" ", a[i]]); i++; j++; }
      else if (j >= b.length || (i < a.length && lengths[(i + 1) * wide + j] >= lengths[i * wide + j + 1])) lines.push(["-", a[i++]]);
      else lines.push(["+", b[j++]]);
    }
  }
  return [...lines, ...same(first.slice(first.length - end))];
};

const CONTEXT = 3;

const differenceBlock = (first, second, path) => {
  const lines = differenceOf(first.split("\n"), second.split("\n"));
  const near = lines.map((_, index) => lines.slice(Math.max(0, index - CONTEXT), index + CONTEXT + 1).some(([sign]) => sign !== " "));
  if (!near.includes(true)) return make("p", { class: "note" }, "No difference.");
  const shown = lines.flatMap(([sign, text], index) => {
    if (!near[index]) return near[index - 1] || index === 0 ? [make("span", { class: "code-line code-gap" }, "⋯")] : [];
    return [make("span", { class: `code-line ${{ "+": "code-added", "-": "code-removed" }[sign] ?? ""}` }, `${sign} ${text}`)];
  });
  return make("pre", { class: "code", tabindex: "0", "aria-label": `Difference in ${path}` }, shown);
};
