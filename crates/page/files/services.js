// Services: requests, queue, latency, instances by stage, limits and problems.

import { attribute, each, element, hide, style, text } from "./dom.js";
import { STAGES, bytes, count, micros, rate, serviceWord, span, stage, stageClass } from "./words.js";

const WINDOW_MS = 60000;
/** By service, the sums of its requests of the last minute, as they came in. */
const seen = new Map();

/** Requests a second of late, and of each pair of samples. */
function rates(service, nowMs) {
  const total = service.served + service.failed + service.refused;
  let samples = seen.get(serviceWord(service)) ?? [];
  // A daemon that was started again counts anew.
  if (samples.length && samples.at(-1).total > total) samples = [];
  if (samples.at(-1)?.at !== nowMs) samples.push({ at: nowMs, total });
  while (samples.length > 2 && nowMs - samples[0].at > WINDOW_MS) samples.shift();
  seen.set(serviceWord(service), samples);
  const between = (from, to) => ((to.total - from.total) * 1000) / Math.max(1, to.at - from.at);
  const each = samples.slice(1).map((sample, index) => between(samples[index], sample));
  const from = samples.find((sample) => nowMs - sample.at <= 10000) ?? samples[0];
  return { now: samples.length > 1 ? between(from, samples.at(-1)) : null, each };
}

function spark(path, values) {
  const most = Math.max(1, ...values);
  const point = (value, index) => `${60 - values.length + 1 + index},${(17 - (value / most) * 15).toFixed(1)}`;
  attribute(path, "points", values.map(point).join(" "));
}

function figure(name) {
  return element("div", "figure", element("b"), element("span", "", name));
}

function make() {
  const card = element("article", "card");
  const picture = document.getElementById("spark").content.firstElementChild.cloneNode(true);
  const shows = {
    name: element("h3"),
    tenant: element("span", "tag"),
    state: element("span", "tag"),
    image: element("p", "quiet"),
    figures: ["requests/s", "queued", "under way", "p50", "p99"].map(figure),
    line: picture.firstElementChild,
    stages: element("div", "stages"),
    counts: element("p", "quiet"),
    limits: element("p", "quiet"),
    canary: element("p", "canary"),
    problem: element("p", "problem"),
  };
  card.append(
    element("div", "head", shows.name, shows.tenant, shows.state, picture),
    shows.image,
    element("div", "figures", ...shows.figures),
    shows.stages,
    shows.counts,
    shows.limits,
    shows.canary,
    shows.problem,
  );
  card.shows = shows;
  return card;
}

function showStages(where, service) {
  const all = [...service.instances, ...(service.canary?.instances ?? [])];
  const found = STAGES.flatMap((name) => [null, "gpu", "host", "disk"].map((level) => ({ name, level })));
  const counted = found.map((of) => ({ ...of, count: all.filter((one) => one.stage === of.name && one.level === of.level).length }));
  const there = counted.filter((one) => one.count > 0);
  if (there.length === 0) there.push({ name: "none", level: null, count: 0 });
  each(where, there, (one) => stageClass(one.name, one.level), (one) => element("span", `stage ${stageClass(one.name, one.level)}`), (tag, one) => {
    text(tag, one.name === "none" ? "no instance" : `${one.count} ${stage(one.name, one.level)}`);
  });
}

/** What becomes of an instance that sleeps. */
function restOf(plan) {
  const stages = plan.stages ?? [];
  if (stages.length === 0) return `ended after ${span(plan.idle_end_ms)} more`;
  return `${stages.map((one) => `${one.level} for ${span(one.ms)}`).join(", ")}, then ended`;
}

function update(card, service, nowMs) {
  const { shows } = card;
  const problem = service.problem ?? null;
  card.classList.toggle("ill", problem !== null);
  text(shows.name, service.name);
  hide(shows.tenant, service.tenant === null);
  text(shows.tenant, `tenant ${service.tenant}`);
  text(shows.state, service.draining ? "draining" : problem ? "problem" : "serving");
  shows.state.className = `tag ${service.draining ? "draining" : problem ? "bad" : "good"}`;
  const scheme = service.tls ? "https" : "http";
  const host = (service.address ?? "*").replace(/^(.*:.*)$/, "[$1]");
  text(shows.image, `${service.source?.image ?? "no image yet"} at ${scheme}://${host}:${service.port}`);
  const { now, each: values } = rates(service, nowMs);
  spark(shows.line, values);
  const latency = service.latency;
  const shown = [rate(now), service.queued, service.in_flight, micros(latency?.p50_us), micros(latency?.p99_us)];
  shown.forEach((value, index) => text(shows.figures[index].firstElementChild, value));
  const { plan } = service;
  style(shows.figures[1].firstElementChild, "color", service.queued >= plan.queue ? "var(--bad)" : "");
  showStages(shows.stages, service);
  text(shows.counts, `${service.served} served · ${service.failed} failed · ${service.refused} refused · ${bytes(service.gpu_bytes)} on GPUs`);
  text(
    shows.limits,
    `${plan.min}–${plan.max} instances · ${count(plan.concurrency, "request")} each · queue ${plan.queue} · ` +
      `waits ${span(plan.timeout_ms)} · asleep after ${span(plan.idle_ms)}, ${restOf(plan)}`,
  );
  const canary = service.canary;
  hide(shows.canary, !canary);
  if (canary) {
    const end = canary.stopped ? ` · takes no further requests: ${canary.stopped}` : "";
    text(
      shows.canary,
      `canary ${canary.image ?? ""}: ${Math.round(canary.share * 10000) / 100}% of the requests · ${canary.served} served · ` +
        `${canary.failed} failed · ${canary.refused} refused${end}`,
    );
  }
  hide(shows.problem, problem === null);
  text(shows.problem, problem ?? "");
}

export function showServices(where, state) {
  const names = new Set(state.services.map(serviceWord));
  for (const name of seen.keys()) if (!names.has(name)) seen.delete(name);
  each(where, state.services, serviceWord, make, (card, service) => update(card, service, state.now_ms));
}
