// "Try it": pictures, videos and a question, the answer as it comes, and its receipt.

import { ask } from "./api.js";
import { el, ms, show } from "./format.js";
import { details } from "./receipts.js";

const $ = (id) => document.getElementById(id);

function dataUrl(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}

const isVideo = (file) => file.type.startsWith("video/");

function preview(file) {
  if (isVideo(file)) return el("span", { text: file.name });
  return el("img", { src: URL.createObjectURL(file), alt: file.name });
}

async function part(file) {
  const kind = isVideo(file) ? "video_url" : "image_url";
  return { type: kind, [kind]: { url: await dataUrl(file) } };
}

export function startAsking(onEnd) {
  let running = null;

  $("picture").addEventListener("change", () => {
    for (const old of $("previews").querySelectorAll("img")) URL.revokeObjectURL(old.src);
    show($("previews"), [...$("picture").files].map(preview));
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
  });

  $("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) return;
    running = new AbortController();
    $("send").disabled = true;
    $("stop").disabled = false;
    $("answer").className = "answer";
    $("answer").textContent = "";
    show($("answer-receipt"), []);
    try {
      await stream(running.signal);
    } catch (error) {
      const text = error.name === "AbortError" ? "Stopped." : error.message;
      $("answer").append(el("p", { class: "problem", text }));
    }
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
    onEnd();
  });
}

async function stream(signal) {
  const parts = await Promise.all([...$("picture").files].map(part));
  parts.push({ type: "text", text: $("question").value });
  const body = {
    messages: [{ role: "user", content: parts }],
    max_tokens: Number($("max-tokens").value),
    temperature: 0,
    chiasm: { receipt: true },
  };
  const started = performance.now();
  await ask(body, (chunk) => {
    for (const choice of chunk.choices) $("answer").append(choice.delta.content ?? "");
    if (chunk.chiasm) {
      const seen = ms((performance.now() - started) / 1000);
      show($("answer-receipt"), [el("p", { class: "hint", text: `Answered in ${seen}, as this page saw it.` }), details(chunk.chiasm.receipt)]);
    }
  }, signal);
}
