// Receipts: a stacked bar for each request, and its spans as a waterfall.

import { el, many, ms, words } from "./format.js";

export const STAGES = [
  "receive", "queue", "fetch", "check", "route", "adapter", "prompt", "decode_media", "prepare", "encode_queue", "encode", "transfer", "prefill_queue", "prefill",
  "tokenize", "pool_queue", "forward", "post", "kv_transfer", "first_token", "unaccounted", "decode",
];

export function paint(node, stage) {
  node.style.background = `var(--${STAGES.includes(stage) ? stage : "decode"})`;
  return node;
}

export function legend(receipts) {
  const seen = new Set(receipts.flatMap((receipt) => Object.keys(parts(receipt))));
  return STAGES.filter((stage) => seen.has(stage)).map((stage) =>
    el("li", {}, paint(el("span", { class: "swatch" }), stage), words(stage)));
}

export function card(receipt) {
  const node = el("details", { "data-id": receipt.request_id });
  node.append(summary(receipt));
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) node.append(details(receipt));
  });
  return node;
}

export function waterfall(receipt) {
  const node = el("div", { class: "fall" });
  const total = Math.max(receipt.e2e_s, ...receipt.spans.map((span) => span.end_s), 1e-9);
  const rows = receipt.spans.map((span) => [span.item == null ? words(span.stage) : `${words(span.stage)} ${span.item}`, span]);
  if (receipt.decode_s > 0 && receipt.ttft_s != null) {
    rows.push(["decode", { stage: "decode", start_s: receipt.ttft_s, end_s: receipt.e2e_s }]);
  }
  for (const [name, span] of rows) {
    const bar = paint(el("div"), span.stage);
    bar.style.left = `${(100 * Math.max(0, span.start_s)) / total}%`;
    bar.style.width = `${(100 * Math.max(0, span.end_s - span.start_s)) / total}%`;
    node.append(el("span", { text: name }), el("div", { class: "lane" }, bar), el("span", { class: "ms", text: ms(span.end_s - span.start_s) }));
  }
  return node;
}

export function details(receipt) {
  const lines = [
    `Request ${receipt.request_id}: ${words(receipt.outcome)}`,
    `${many(receipt.num_prompt_tokens, "prompt token")}, of them ${receipt.num_visual_tokens} visual and ${receipt.num_cached_tokens} cached; ${many(receipt.num_output_tokens, "output token")}`,
  ];
  if (receipt.num_items) lines.push(`${many(receipt.num_items, "picture")}, ${receipt.num_cached_embeddings} not encoded again`);
  if (receipt.route) {
    lines.push(`Way: ${receipt.route.path}${receipt.route.reason ? ` (${receipt.route.reason})` : ""}`);
    const expected = Object.entries(receipt.route.expected_s ?? {}).map(([stage, seconds]) => `${ms(seconds)} of ${stage}`);
    if (expected.length) lines.push(`Expected: ${expected.join(", ")}`);
    const attempts = receipt.route.attempts.map((one) => `${one.stage} on ${one.worker}: ${words(one.outcome)}`);
    if (attempts.length) lines.push(`Attempts: ${attempts.join(", ")}`);
  }
  return el("div", { class: "details" }, ...lines.map((text) => el("p", { text })), waterfall(receipt));
}

function parts(receipt) {
  const found = { ...receipt.stages_s };
  if (receipt.unaccounted_s > 1e-6) found.unaccounted = receipt.unaccounted_s;
  if (receipt.decode_s > 1e-6) found.decode = receipt.decode_s;
  return found;
}

function summary(receipt) {
  const found = parts(receipt);
  const stack = el("div", { class: "stack", role: "img", "aria-label": spoken(found) });
  for (const stage of STAGES.filter((name) => name in found)) {
    const bar = paint(el("div", { title: `${words(stage)}: ${ms(found[stage])}` }), stage);
    bar.style.width = `${(100 * found[stage]) / Math.max(receipt.e2e_s, 1e-9)}%`;
    stack.append(bar);
  }
  const first = receipt.ttft_s == null ? "no token" : `first token ${ms(receipt.ttft_s)}`;
  const outcome = receipt.outcome === "finished" ? "good" : receipt.outcome === "cancelled" ? "warn" : "bad";
  const who = el("span", { class: "who" }, el("span", { class: outcome, text: words(receipt.outcome) }));
  if (receipt.num_items) who.append(`, ${many(receipt.num_items, "picture")}`);
  return el("summary", {}, who, stack, el("span", { class: "numbers", text: `${first}, end ${ms(receipt.e2e_s)}` }));
}

function spoken(found) {
  return Object.entries(found).map(([stage, seconds]) => `${words(stage)} ${ms(seconds)}`).join(", ");
}
