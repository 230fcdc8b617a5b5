// What is asked for when, and where it is shown.

import { NeedsKey, getJson, key, setKey } from "./api.js";
import { startAsking } from "./ask.js";
import { count, duration, el, ms, rate, show, words } from "./format.js";
import { card, legend } from "./receipts.js";
import { workers } from "./workers.js";

const STATE_INTERVAL_MS = 1000;
const MEMORY_EVERY_MS = 10_000;
const NUM_RECEIPTS = 20;
const NUM_SAMPLES = 60;
const $ = (id) => document.getElementById(id);

let last = null;
let memory = {};
let weighedAt = 0;
const history = { requests: [], tokens: [] };

function perSecond(state, name) {
  if (!last || state.uptime_s <= last.uptime_s) return 0; // the server was started anew
  return Math.max(0, ((state.totals[name] ?? 0) - (last.totals[name] ?? 0)) / (state.uptime_s - last.uptime_s));
}

function remember(values, value) {
  values.push(value);
  if (values.length > NUM_SAMPLES) values.shift();
}

function tile(name, value, unit, values) {
  const node = el("div", { class: "tile" }, el("div", { class: "name", text: name }));
  node.append(el("div", { class: "value", text: value }, " ", el("small", { text: unit })));
  if (values) node.append(sparkline(values));
  return node;
}

function sparkline(values) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${NUM_SAMPLES - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const most = Math.max(...values, 1e-9);
  const line = document.createElementNS(space, "polyline");
  const start = NUM_SAMPLES - values.length;
  line.setAttribute("points", values.map((value, index) => `${start + index},${19 - (18 * value) / most}`).join(" "));
  svg.append(line);
  return svg;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

function bars(node, rows) {
  const most = Math.max(...rows.map(([, value]) => value), 1);
  show(node, rows.flatMap(([name, value]) => {
    const bar = el("div");
    bar.style.width = `${(100 * value) / most}%`;
    return [
      el("dt", { text: name }),
      el("dd", { class: "bar" }, el("div", { class: "track" }, bar)),
      el("dd", { class: "count", text: count(value) }),
    ];
  }));
}

function showState(state, receipts) {
  const { requests, totals } = state;
  remember(history.requests, perSecond(state, "requests"));
  remember(history.tokens, perSecond(state, "output_tokens"));
  const first = median(receipts.map((one) => one.ttft_s).filter((value) => value != null));
  const cached = totals.prompt_tokens ? `${((100 * totals.cached_tokens) / totals.prompt_tokens).toFixed(0)}` : "0";
  $("model").textContent = state.model.model;
  $("facts").textContent = `${state.model.family}, ${state.model.dtype}, Chiasm ${state.version}, up ${duration(state.uptime_s)}`;
  status(state.is_ready ? "ready" : "not ready", state.is_ready ? "good" : "bad");
  show($("tiles"), [
    tile("Requests ended", rate(history.requests.at(-1)), "per s", history.requests),
    tile("Output tokens", rate(history.tokens.at(-1)), "per s", history.tokens),
    tile("Running", count(requests.num_running), `and ${count(requests.num_queued)} queued`),
    tile("First token, median", first == null ? "-" : ms(first).split(" ")[0], first == null ? "" : `${ms(first).split(" ")[1]}, last ${receipts.length}`),
    tile("Prompt tokens cached", cached, "%"),
    tile("Pictures not encoded", count(totals.cached_embeddings ?? 0), `of ${count(totals.prompt_media_items ?? 0)}`),
  ]);
  const { topology, policy, members } = state.fleet;
  $("topology").textContent = `${topology}${policy && topology !== "local" ? `, ${words(policy)}` : ""}, ${members.length} in all`;
  show($("workers"), workers(state.fleet, memory));
  showTotals(state);
  last = state;
}

function showTotals(state) {
  const found = Object.entries(state.worker_totals).filter(([name]) => name.startsWith("encodes_"));
  const routed = found.some(([name]) => !name.includes("avoided"));
  if (!routed && state.worker_totals.encoded_items != null) found.push(["encoded_items", state.worker_totals.encoded_items]); // one process
  found.sort(([a], [b]) => a.includes("avoided") - b.includes("avoided") || b.localeCompare(a)); // encoded ones first
  const names = { encodes_sent: "sent to encoders", encodes_local: "encoded where prefilled", encoded_items: "encoded" };
  const rows = found.map(([name, value]) => [names[name] ?? `avoided: ${words(name.replace("encodes_avoided_", ""))}`, value]);
  $("avoided-hint").textContent = rows.length
    ? "What became of each: encoded, or covered by something that was there."
    : "What the gateway counted.";
  const total = state.totals;
  bars($("avoided"), rows.length ? rows : [["came", total.media_items ?? 0], ["taken from the cache", total.cached_embeddings ?? 0]]);
  const endings = Object.entries(state.requests.outcomes).sort(([, a], [, b]) => b - a);
  bars($("endings"), endings.length ? endings.map(([name, value]) => [words(name), value]) : [["none yet", 0]]);
}

function showReceipts(receipts) {
  const open = new Set([...$("receipts").querySelectorAll("details")].map((node) => node.dataset.id));
  const fresh = receipts.filter((one) => !open.has(one.request_id));
  const wanted = new Set(receipts.map((one) => one.request_id));
  for (const node of $("receipts").querySelectorAll("details")) {
    if (!wanted.has(node.dataset.id) && !node.open) node.remove(); // what somebody reads stays
  }
  $("receipts").prepend(...fresh.map(card));
  show($("legend"), legend(receipts));
  if (!receipts.length) show($("receipts"), [el("p", { class: "hint", text: "None yet. Ask something below." })]);
  else $("receipts").querySelector(".hint")?.remove();
}

function status(text, kind) {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").className = `pill ${kind}`;
}

// Reading memory costs a server more than reading counters does, and waits for workers that may be down: the rest does not wait.
async function weigh() {
  if (Date.now() - weighedAt < MEMORY_EVERY_MS) return;
  weighedAt = Date.now();
  try {
    memory = Object.fromEntries((await getJson("debug/memory")).workers.map((one) => [one.worker, one]));
  } catch {
    memory = {}; // what is wrong with the server, the state's own request says
  }
}

async function refresh() {
  try {
    const [state, { receipts }] = await Promise.all([getJson("debug/state"), getJson(`debug/receipts?limit=${NUM_RECEIPTS}`)]);
    $("key-form").hidden = true;
    weigh();
    showState(state, receipts);
    showReceipts(receipts);
  } catch (error) {
    if (error instanceof NeedsKey) {
      status("needs a key", "warn");
      if ($("key-form").hidden) $("key-form").hidden = false;
      $("key-problem").textContent = key() ? error.message : "";
    } else status("no answer", "bad");
  }
}

async function keepRefreshing() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((done) => setTimeout(done, STATE_INTERVAL_MS));
  }
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("key").value.trim());
  $("key").value = "";
  refresh();
});

$("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = getComputedStyle(root).colorScheme.includes("dark");
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("chiasm-console-theme", root.dataset.theme);
});

const theme = localStorage.getItem("chiasm-console-theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
startAsking(refresh);
keepRefreshing();
