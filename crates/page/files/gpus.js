// GPU memory as a map: who has how much of each GPU.

import { attribute, each, element, style, text } from "./dom.js";
import { bytes } from "./words.js";

const KINDS = {
  program: "program",
  asleep: "asleep on the GPU",
  waiting: "worker that waits",
  contexts: "shared context",
  cache: "caches",
  "handed-on": "arrays handed on",
  other: "others",
  free: "free",
};

function make() {
  const head = element("div", "head", element("h3"), element("span", "quiet"));
  return element("article", "gpu", head, element("div", "bar"), element("ul", "parts"));
}

function update(box, gpu) {
  const [head, bar, list] = box.children;
  const segments = [...gpu.segments];
  if (gpu.free_bytes !== null) segments.push({ kind: "free", name: "", bytes: gpu.free_bytes });
  const total = Math.max(1, segments.reduce((sum, one) => sum + one.bytes, 0));
  text(head.children[0], gpu.model ? `${gpu.gpu} · ${gpu.model}` : gpu.gpu);
  const limit = gpu.service_limit_bytes;
  const within = limit ? ` · services may have ${bytes(limit)}` : "";
  text(head.children[1], gpu.total_bytes ? `${bytes(total - (gpu.free_bytes ?? 0))} of ${bytes(gpu.total_bytes)}${within}` : within);
  const words = (one) => [KINDS[one.kind] ?? one.kind, one.name].filter(Boolean).join(": ");
  const key = (one) => `${one.kind} ${one.name}`;
  each(bar, segments, key, (one) => element("i", `kind-${one.kind}`), (part, one) => {
    style(part, "width", `${((100 * one.bytes) / total).toFixed(3)}%`);
    attribute(part, "title", `${words(one)}, ${bytes(one.bytes)}`);
  });
  each(list, segments, key, (one) => element("li", `key kind-${one.kind}`, element("span"), element("b")), (item, one) => {
    text(item.children[0], words(one));
    text(item.children[1], bytes(one.bytes));
  });
}

export function showGpus(where, state) {
  each(where, state.gpus, (gpu) => gpu.gpu, make, update);
}
