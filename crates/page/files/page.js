// Asks the daemon for its state, again and again, and has all parts show it.

import { hide, text, element, each } from "./dom.js";
import { bytes, clock, span } from "./words.js";
import { showServices } from "./services.js";
import { showLegend, showTimeline } from "./timeline.js";
import { showGpus } from "./gpus.js";
import { showImages, showSandboxes, showWorkflows } from "./tables.js";

const EVERY_MS = 1000;
const LIMIT_MS = 8000;
const byId = (id) => document.getElementById(id);

/** When the state came that is shown. */
let last = null;

async function ask() {
  const response = await fetch("/state.json", { cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS) });
  if (response.ok) return response.json();
  // The daemon says why in a sentence; another server, or a proxy, may say anything.
  const isSentence = response.headers.get("Content-Type")?.startsWith("text/plain");
  const why = isSentence ? (await response.text()).trim() : "";
  throw new Error(why || `the answer has the status ${response.status}`);
}

function showSums(state) {
  const of = (kind) => state.services.reduce((sum, service) => sum + service[kind], 0);
  const awake = state.services.flatMap((service) => service.instances).filter((one) => one.stage === "running").length;
  const live = state.sandboxes.filter((one) => one.live).length;
  const stored = state.images.reduce((sum, image) => sum + (image.sizes?.stored ?? 0), 0);
  const sums = [
    ["services", state.services.length],
    ["instances awake", awake],
    ["requests under way", of("in_flight")],
    ["requests that wait", of("queued")],
    ["sandboxes", live],
    ["images", `${state.images.length} · ${bytes(stored)}`],
  ];
  const make = () => element("div", "sum", element("b"), element("span"));
  each(byId("sums"), sums, ([name]) => name, make, (box, [name, value]) => {
    text(box.firstElementChild, value);
    text(box.lastElementChild, name);
  });
}

function show(state) {
  text(byId("machine"), `${state.host} · version ${state.version} · up ${span(state.now_ms - state.started_ms)}`);
  document.title = `Rekindle · ${state.host}`;
  showSums(state);
  showServices(byId("services"), state);
  hide(byId("services-none"), state.services.length > 0);
  showWorkflows(byId("workflows"), state);
  hide(byId("workflows-shown"), state.workflows.length === 0);
  const lanes = showTimeline(byId("timeline"), byId("timeline-span"), state);
  showLegend(byId("legend"), lanes > 0);
  hide(byId("timeline-none"), lanes > 0);
  showGpus(byId("gpus"), state);
  hide(byId("gpus-none"), state.gpus.length > 0);
  showSandboxes(byId("sandboxes"), state);
  hide(byId("sandboxes-none"), state.sandboxes.length > 0);
  showImages(byId("images"), state);
  hide(byId("images-none"), state.images.length > 0);
}

function showContact(isLive, banner) {
  const contact = byId("contact");
  contact.className = isLive ? "live" : "lost";
  text(contact, isLive ? "live" : "not reached");
  document.body.classList.toggle("stale", !isLive);
  text(byId("banner"), banner);
  hide(byId("banner"), banner === "");
}

async function turn() {
  let state;
  try {
    state = await ask();
  } catch (error) {
    const why = error.name === "TimeoutError" ? "it does not answer" : error.message;
    const shown = last ? ` What is shown is from ${clock(last)}.` : "";
    showContact(false, `The daemon cannot be reached: ${why}.${shown}`);
    return;
  }
  last = Date.now();
  try {
    show(state);
    showContact(true, state.problems.join(" · "));
  } catch (error) {
    showContact(true, `This page cannot show all of the state: ${error.message}.`);
  }
}

async function run() {
  for (;;) {
    if (!document.hidden || !last) await turn();
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) turn();
});
run();
