"use strict";
// Texts from models and people are only ever set as text, never as HTML.
const find = (id) => document.getElementById(id);
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const percent = (value) => (100 * value).toFixed(1) + " %";

const text = (id, label, value, rows) => ({ id, label, value, rows });

// For each kind of model: its fields, the request, and how its answer is shown.
const KINDS = {
  classifier: {
    what: "gives a text its label",
    fields: (info) => info.takes_pairs
      ? [text("first", "Text", "Two owls sleep in the barn.", 3), text("second", "Second text", "Birds are asleep.", 3)]
      : [text("first", "Text", "A warm, funny film that I would gladly see again.", 4)],
    request: (values, info) => ["predict", { inputs: info.takes_pairs ? [[values.first, values.second]] : values.first }],
    show: (answer, _, info) => {
      const labels = info.takes_pairs ? answer[0] : answer;
      const isValue = labels.length === 1;
      return bars(labels.map((one) => [one.label, one.score, isValue ? one.score.toFixed(3) : percent(one.score)]));
    },
  },
  token_classifier: {
    what: "finds entities in a text",
    fields: () => [text("first", "Text", "Marie Curie moved from Warsaw to Paris and worked at the University of Paris.", 4)],
    request: (values) => ["entities", { inputs: values.first }],
    show: (answer, values) => marked(values.first, answer[0].entities.map((one) => [one.characters, one.kind, one.probability])),
  },
  question_answering: {
    what: "finds the answer to a question in a text",
    fields: () => [
      text("first", "Question", "Who saw the owls?", 1),
      text("second", "Text with the answer", "The night was cold. Mira and her brother saw two owls in the old barn.", 5)],
    request: (values) => ["answer", { inputs: { question: values.first, context: values.second } }],
    show: (answer, values) => answers(answer[0].answers, values.second),
  },
  embedding: {
    what: "turns texts into vectors: see which sentence is nearest",
    fields: () => [
      text("first", "Sentence", "How do I get my money back?", 1),
      text("second", "Sentences to compare it with, one per line",
        "You can ask for a refund within 30 days.\nThe museum opens at nine.\nOur offices are closed on Sunday.", 5)],
    request: (values) => ["similarity", { inputs: { source_sentence: values.first, sentences: lines(values.second) } }],
    show: (answer, values) => ranked(lines(values.second).map((line, index) => [line, answer[index], answer[index].toFixed(3)])),
  },
  reranker: {
    what: "ranks texts by how well they answer a query",
    fields: () => [
      text("first", "Query", "How do I get my money back?", 1),
      text("second", "Texts to rank, one per line", "You can ask for a refund within 30 days.\nThe museum opens at nine.", 5)],
    request: (values) => ["rerank", { query: values.first, texts: lines(values.second) }],
    show: (answer, values) => ranked(answer.map((one) => [lines(values.second)[one.index], one.score, one.score.toFixed(3)])),
  },
};

const lines = (value) => value.split("\n").map((line) => line.trim()).filter((line) => line);

function bars(rows) {
  const list = element("ol", { className: "bars" });
  for (const [name, value, shown] of rows) {
    const bar = element("progress", { max: 1, value: Math.min(1, Math.max(0, value)) });
    bar.setAttribute("aria-label", name + ": " + shown);
    list.append(element("li", {},
      element("div", { className: "name" }, element("span", {}, name), element("span", { className: "number" }, shown)), bar));
  }
  return [list];
}

const ranked = (rows) => bars(rows.sort((a, b) => b[1] - a[1]));

// Places count Unicode code points, strings of this language UTF-16 units: so the text is cut into characters first.
function marked(whole, spans) {
  const characters = Array.from(whole), kinds = [...new Set(spans.map((span) => span[1]))];
  const paragraph = element("p", { className: "text" });
  let from = 0;
  for (const [place, kind, probability] of [...spans].sort((a, b) => a[0].start - b[0].start)) {
    if (place.start < from) continue;
    paragraph.append(characters.slice(from, place.start).join(""));
    const mark = element("mark", { className: "k" + (kinds.indexOf(kind) % 6) }, characters.slice(place.start, place.end).join(""));
    if (kind) {
      mark.append(element("span", { className: "kind" }, kind));
      mark.title = kind + " " + percent(probability);
    }
    paragraph.append(mark);
    from = place.end;
  }
  paragraph.append(characters.slice(from).join(""));
  return spans.length ? [paragraph] : [paragraph, element("p", { className: "muted" }, "No entities.")];
}

function answers(found, context) {
  if (!found.length) return [element("p", {}, "No answer.")];
  const mark = marked(context, [[found[0].characters, "", found[0].probability]]);
  return [element("p", { className: "best" }, found[0].text), ...mark,
    ...bars(found.slice(0, 3).map((one) => [one.text, one.probability, percent(one.probability)]))];
}

let info, kind, models = [];
const base = () => (models.length > 1 ? "models/" + encodeURIComponent(info.model_id) + "/" : "");

async function json(path, body) {
  const options = body ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {};
  const begun = performance.now();
  const response = await fetch(path, options);
  const value = await response.json();
  if (!response.ok) throw Object.assign(new Error(value.error), { hint: value.hint });
  const timing = /dur=([\d.]+)/.exec(response.headers.get("server-timing") || "");
  return { value, server: timing ? Number(timing[1]) : null, whole: performance.now() - begun };
}

const size = (bytes) => (bytes >= 1e6 ? (bytes / 1e6).toFixed(1) + " MB" : (bytes / 1e3).toFixed(0) + " kB");

function card(speed) {
  const labels = kind === "embedding" ? null : Object.values((info.model_type[kind] || {}).id2label || {});
  const rows = [
    ["Name", info.model_id], ["Kind", kind.replace("_", " ")], ["Task", info.task], ["Family", info.family],
    ["Size", size(info.file_bytes)], ["Precision", info.model_dtype],
    ["Layers", info.layers + " × " + info.hidden_size], ["Longest text", info.max_input_length + " tokens"],
    ["Labels", labels && labels.length ? labels.slice(0, 12).join(", ") + (labels.length > 12 ? ", …" : "") : null],
    ["Computes with", info.kernels + ", " + info.threads + " threads"], ["Last answer", speed],
  ];
  find("card").replaceChildren(...rows.filter((row) => row[1]).flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, String(value))]));
}

async function choose(name) {
  find("problem").textContent = "";
  find("result").replaceChildren();
  find("code").hidden = true;
  info = (await json(name ? "models/" + encodeURIComponent(name) + "/info" : "info")).value;
  models = info.models;
  kind = Object.keys(info.model_type)[0];
  find("what").textContent = KINDS[kind].what;
  document.title = info.model_id + " · qbert";
  card(null);
  find("fields").replaceChildren(...KINDS[kind].fields(info).map((field) => {
    const input = field.rows > 1 ? element("textarea", { rows: field.rows }) : element("input", { type: "text" });
    Object.assign(input, { id: field.id, value: field.value, required: true });
    return element("div", { className: "field" }, element("label", { htmlFor: field.id }, field.label), input);
  }));
  if (models.length > 1 && !find("model").options.length) {
    find("model").append(...models.map((one) => element("option", { value: one }, one)));
    find("choice").hidden = false;
  }
  find("go").disabled = false;
}

// A word for the shell.
const quoted = (word) => "'" + word.replaceAll("'", "'\\''") + "'";

function programs(path, body) {
  const url = new URL(base() + path, document.baseURI).href, key = info.api_key_required;
  find("curl").textContent = "curl " + quoted(url) + " \\\n  -H 'Content-Type: application/json' \\\n"
    + (key ? "  -H \"Authorization: Bearer $QBERT_API_KEY\" \\\n" : "") + "  -d " + quoted(JSON.stringify(body));
  const python = JSON.stringify(body, null, 4).replace(/\b(true|false|null)\b(?=[,\n}])/g, (word) =>
    ({ true: "True", false: "False", null: "None" })[word]);
  find("python").textContent = "import " + (key ? "os\nimport " : "") + "requests\n\nresponse = requests.post(\n    "
    + JSON.stringify(url) + ",\n" + (key ? "    headers={\"Authorization\": \"Bearer \" + os.environ[\"QBERT_API_KEY\"]},\n" : "")
    + "    json=" + python.replaceAll("\n", "\n    ") + ",\n)\nresponse.raise_for_status()\nprint(response.json())";
  find("code").hidden = false;
}

async function ask(event) {
  event.preventDefault();
  const values = Object.fromEntries(["first", "second"].map((id) => [id, find(id) ? find(id).value : ""]));
  const [path, body] = KINDS[kind].request(values, info);
  find("problem").textContent = "";
  find("go").disabled = true;
  try {
    const { value, server, whole } = await json(base() + path, body);
    const speed = (server === null ? whole : server).toFixed(1) + " ms";
    find("result").replaceChildren(...KINDS[kind].show(value, values, info),
      element("p", { className: "time" }, "Answered in " + speed + " (" + whole.toFixed(0) + " ms with the way there and back)"));
    card(speed);
    programs(path, body);
  } catch (error) {
    find("result").replaceChildren();
    find("problem").textContent = error.message + (error.hint ? " – " + error.hint : "");
  }
  find("go").disabled = false;
}

find("form").addEventListener("submit", ask);
find("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit();
});
find("model").addEventListener("change", (event) => { start(event.target.value); });
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(find(button.dataset.of).textContent); button.textContent = "Copied"; }
    catch { button.textContent = "Select it and copy"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// While models are being loaded the server says so; then the page waits for them.
async function start(name) {
  try { await choose(name); }
  catch (error) {
    find("what").textContent = error.message || "the server does not answer";
    setTimeout(() => start(name), 1000);
  }
}
start("");
