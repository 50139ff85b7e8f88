"use strict";
// All text of users and of the server goes through textContent; nothing is parsed as HTML.
const FLAGS = { rows: "--enable-return-hidden-states", tilespec: "--tile-spec", metrics: "--enable-metrics" };
const POLL = 2000;
const HISTORY = 60;
const $ = (selector, root = document) => root.querySelector(selector);
const state = { on: new Set(), claim: null, steps: null, widths: [] };

function element(name, props = {}, ...children) {
  const made = Object.assign(document.createElement(name), props);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

async function ask(path, body = null) {
  const headers = {};
  const key = $("#key").value;
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== null) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: body === null ? "GET" : "POST", headers, body: body && JSON.stringify(body) });
  const text = await answer.text();
  if (answer.ok) return text;
  let message = text.slice(0, 300);
  try { message = JSON.parse(text).error.message ?? message; } catch { /* not our JSON */ }
  throw new Error(answer.status === 401 ? "the server needs its API key: enter it above" : `HTTP ${answer.status}: ${message}`);
}

const json = async (path, body) => JSON.parse(await ask(path, body));

async function shown(out, work) {
  out.replaceChildren("…");
  try { out.replaceChildren(...await work()); }
  catch (error) { out.replaceChildren(element("p", { className: "error", textContent: error.message })); }
}

// Numbers ---------------------------------------------------------------------------------------------------------

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const cosine = (a, b) => dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);

function centred(vectors) {
  const mean = vectors[0].map((_, i) => vectors.reduce((sum, own) => sum + own[i], 0) / vectors.length);
  return vectors.map((own) => own.map((value, i) => value - mean[i]));
}

// Two principal axes of points, from their Gram matrix: what classical scaling of their distances gives, too.
function plane(vectors) {
  const points = centred(vectors);
  let gram = points.map((a) => points.map((b) => dot(a, b)));
  const axes = [0, 1].map((axis) => {
    let vector = points.map((_, i) => Math.cos(1 + i * (axis + 1)));
    let size = 0;
    for (let step = 0; step < 300; step++) {
      const next = gram.map((line) => dot(line, vector));
      size = Math.sqrt(dot(next, next));
      if (size < 1e-12) return points.map(() => 0);
      vector = next.map((value) => value / size);
    }
    gram = gram.map((line, i) => line.map((value, j) => value - size * vector[i] * vector[j]));
    return vector.map((value) => value * Math.sqrt(size));
  });
  return points.map((_, i) => [axes[0][i], axes[1][i]]);
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

function rowsOf({ data, dtype, shape }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)).buffer;
  let flat;
  if (dtype === "float32") flat = new Float32Array(bytes);
  else if (dtype === "bfloat16") flat = new Float32Array(Uint32Array.from(new Uint16Array(bytes), (bits) => bits << 16).buffer);
  else flat = Float32Array.from(new Uint16Array(bytes), half);
  return Array.from({ length: shape[0] }, (_, i) => Array.from(flat.subarray(i * shape[1], (i + 1) * shape[1])));
}

// 0 is white, 1 dark blue.
const colour = (t) => `hsl(210 70% ${97 - 62 * Math.min(Math.max(t, 0), 1)}%)`;
const contrast = (t) => (t > 0.55 ? "dark" : "light");

// Panels ----------------------------------------------------------------------------------------------------------

function heat(texts, values) {
  const n = texts.length, cell = 44, left = 20, size = left + n * cell;
  const svg = drawn("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "heat map of similarities" });
  const others = values.flatMap((line, i) => line.filter((_, j) => j !== i));
  const low = Math.min(...others, 0.999), high = 1;
  values.forEach((line, i) => {
    svg.append(drawn("text", { x: 2, y: left + i * cell + cell / 2 + 4 }, i + 1));
    svg.append(drawn("text", { x: left + i * cell + cell / 2 - 4, y: 13 }, i + 1));
    line.forEach((value, j) => {
      const t = (value - low) / (high - low);
      const box = drawn("rect", { x: left + j * cell, y: left + i * cell, width: cell - 1, height: cell - 1, fill: colour(t) });
      box.append(drawn("title", {}, `${texts[i]}\n${texts[j]}\n${value.toFixed(4)}`));
      svg.append(box);
      if (n <= 16) svg.append(drawn("text", { x: left + j * cell + 7, y: left + i * cell + cell / 2 + 4, class: contrast(t) }, value.toFixed(2)));
    });
  });
  return svg;
}

function scatter(texts, points) {
  const svg = drawn("svg", { viewBox: "0 0 320 320", role: "img", "aria-label": "map of the texts" });
  const reach = Math.max(...points.flat().map(Math.abs), 1e-9);
  points.forEach(([x, y], i) => {
    const at = [160 + (x / reach) * 110, 160 - (y / reach) * 140];
    const dotted = drawn("circle", { cx: at[0], cy: at[1], r: 5, fill: "var(--accent)" });
    dotted.append(drawn("title", {}, texts[i]));
    const short = texts[i].length > 14 ? `${texts[i].slice(0, 13)}…` : texts[i];
    svg.append(dotted, drawn("text", { x: at[0] + 8, y: at[1] + 4 }, `${i + 1} ${short}`));
  });
  return svg;
}

async function compare(form, section) {
  const texts = form.texts.value.split("\n").filter((line) => line.trim());
  await shown($(".heat", section), async () => {
    $(".plane", section).replaceChildren();
    const answer = await json("/v1/embeddings", { input: texts, pooling: form.pooling.value, normalize: true });
    const found = answer.data.map((item) => item.embedding);
    const vectors = form.center.checked && texts.length > 1 ? centred(found) : found;
    $(".plane", section).replaceChildren(scatter(texts, plane(vectors)));
    return [heat(texts, vectors.map((a) => vectors.map((b) => cosine(a, b))))];
  });
}

async function colourTokens(form, section) {
  await shown($(".out", section), async () => {
    const { meta_info: meta } = await json("/generate", {
      text: form.text.value, sampling_params: { max_new_tokens: 0 }, return_input_ids: true,
      return_hidden_states: true, hidden_states_format: "base64", return_toploc_fingerprints: false,
    });
    const rows = rowsOf(meta.hidden_states);
    const { text: words } = await json("/v1/detokenize", { tokens: meta.input_ids.map((id) => [id]), skip_special_tokens: false });
    const buttons = words.map((word, i) => element("button", { className: "token", type: "button", textContent: word.replaceAll("\n", "⏎\n") }));
    const choose = (chosen) => buttons.forEach((button, i) => {
      const value = cosine(rows[i], rows[chosen]);
      button.style.background = colour(value);
      button.style.color = contrast(value) === "dark" ? "#fff" : "#000";
      button.title = `token ${meta.input_ids[i]}, position ${i}: cosine ${value.toFixed(4)}`;
      button.classList.toggle("chosen", i === chosen);
    });
    buttons.forEach((button, i) => button.addEventListener("click", () => choose(i)));
    choose(rows.length - 1);
    return buttons;
  });
}

async function prove(form, section) {
  state.claim = null;
  await shown($(".out", section), async () => {
    const answer = await json("/generate", {
      text: form.text.value, sampling_params: { max_new_tokens: Number(form.count.value), temperature: 0 },
      return_toploc_fingerprints: true, return_input_ids: true, return_output_ids: true,
    });
    const { input_ids, output_ids, toploc_verification_fingerprints: fingerprints, rows_unavailable: why } = answer.meta_info;
    if (!fingerprints) throw new Error(why ?? "no fingerprints");
    state.claim = { input_ids, output_ids, fingerprints };
    return [
      element("pre", { textContent: answer.text }),
      element("p", { textContent: `${fingerprints.length} fingerprints of ${input_ids.length} + ${output_ids.length} tokens` }),
      ...fingerprints.slice(0, 3).map((one) => element("pre", { textContent: `${one.slice(0, 60)}…` })),
      element("div", { className: "verdicts" }),
    ];
  });
  form.verify.disabled = form.tamper.disabled = state.claim === null;
}

async function verify(section, tampered) {
  const claim = structuredClone(state.claim);
  if (tampered) claim.output_ids.reverse();
  const line = element("p");
  $(".verdicts", section).append(line);
  await shown(line, async () => {
    const { results: [result] } = await json("/v1/toploc/verify", { claims: [claim] });
    const what = tampered ? "with its tokens reversed: " : "as it came: ";
    const verdict = element("span", { className: `verdict ${result.verdict}`, textContent: result.verdict });
    return [what, verdict, result.reason ? ` (${result.reason})` : ""];
  });
}

function samplesOf(text) {
  return text.split("\n").filter((line) => line.startsWith("tessera:")).map((line) => {
    const cut = line.lastIndexOf(" ");
    return { name: line.slice(0, cut).replace(/model_name="[^"]*",?/, "").replace(/,?\}/, "}").replace("{}", ""), value: Number(line.slice(cut + 1)) };
  });
}

function showWidths(samples) {
  const steps = {};
  for (const { name, value } of samples) {
    const drafted = /^tessera:tilespec_steps_total\{.*drafted="(\d+)"/.exec(name);
    if (drafted) steps[drafted[1]] = (steps[drafted[1]] ?? 0) + value;
  }
  if (state.steps !== null) {
    const grown = Object.fromEntries(Object.entries(steps).map(([width, count]) => [width, count - (state.steps[width] ?? 0)]));
    state.widths = [...state.widths, grown].slice(-HISTORY);
  }
  state.steps = steps;
  const widths = Object.keys(steps).map(Number).sort((a, b) => a - b);
  const most = Math.max(...widths, 1), bar = 600 / HISTORY;
  const svg = drawn("svg", { viewBox: "0 0 640 175", role: "img", "aria-label": "share of decode steps by draft steps" });
  state.widths.forEach((grown, i) => {
    const total = Object.values(grown).reduce((sum, value) => sum + value, 0);
    let top = 150;
    for (const width of widths) {
      const height = total ? (150 * (grown[width] ?? 0)) / total : 0;
      top -= height;
      if (height) svg.append(drawn("rect", { class: "step", x: i * bar, y: top, width: bar - 1, height, fill: colour(0.15 + (0.85 * width) / most) }));
    }
  });
  widths.forEach((width, i) => {
    svg.append(drawn("rect", { x: i * 60, y: 160, width: 10, height: 10, fill: colour(0.15 + (0.85 * width) / most) }));
    svg.append(drawn("text", { x: i * 60 + 14, y: 169 }, width));
  });
  $("#widths .out").replaceChildren(svg);
}

function showMetrics(samples) {
  const wanted = samples.filter(({ name, value }) => !name.includes("_bucket") && (value || !$("#nonzero").checked));
  const lines = wanted.map(({ name, value }) => element("tr", {},
    element("td", { textContent: name }), element("td", { textContent: String(Number(value.toPrecision(6))) })));
  $("#metrics .out").replaceChildren(element("table", {}, ...lines));
}

async function poll() {
  try {
    const samples = samplesOf(await ask("/metrics"));
    state.on.add("metrics");
    showMetrics(samples);
    if (state.on.has("tilespec")) showWidths(samples);
  } catch { state.on.delete("metrics"); }
}

function showSwitches() {
  for (const section of document.querySelectorAll("section")) {
    const missing = new Set([section.dataset.needs, ...(section.id === "widths" ? ["metrics"] : [])].filter((name) => !state.on.has(name)));
    section.classList.toggle("off", missing.size > 0);
    if (missing.size) {
      const flags = [...missing].map((name) => FLAGS[name]).join(" and ");
      $(".out", section).replaceChildren(element("p", { textContent: `Off on this server. Start it with ${flags}.` }));
    } else if ($(".out p", section)?.textContent.startsWith("Off")) $(".out", section).replaceChildren();
  }
}

async function connect() {
  const about = $("#about");
  about.className = "";
  try {
    const info = await json("/server_info");
    state.on = new Set(info.tessera.on);
    about.textContent = `${info.model_path}, Tessera ${info.tessera.version} on SGLang ${info.version}`;
    await poll();
    showSwitches();
  } catch (error) {
    about.className = "error";
    about.textContent = error.message;
  }
}

function handle(id, work) {
  const section = $(id), form = $("form", section);
  form.addEventListener("submit", (event) => { event.preventDefault(); work(form, section); });
  return form;
}

$("#connect").addEventListener("submit", (event) => { event.preventDefault(); connect(); });
handle("#similarity", async (form, section) => {
  $(".out", section).replaceChildren(element("div", { className: "heat" }), element("div", { className: "plane" }));
  await compare(form, section);
});
handle("#tokens", colourTokens);
const proving = handle("#fingerprints", prove);
proving.verify.addEventListener("click", () => verify($("#fingerprints"), false));
proving.tamper.addEventListener("click", () => verify($("#fingerprints"), true));
setInterval(() => { if (state.on.has("metrics")) poll(); }, POLL);
connect();
