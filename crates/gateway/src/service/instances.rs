//! What is done with instances: they are brought up, put to sleep, woken and ended, and their contexts kept.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Service;
use super::room::resting;
use crate::maker::{Failure, Instance};
use crate::memory::Holding;
use crate::plan::Source;
use crate::policy::{Action, Stage};
use crate::tally::Origin;
use crate::upstream::Upstream;

impl Service {
    /// Has contexts kept for those that sleep, as far as that is wanted, and for no others any more. `are_wanted`: the plan may want
    /// some.
    pub(super) fn keep_contexts(&self, are_wanted: bool) {
        let mut kept = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if !are_wanted && kept.is_empty() {
            return;
        }
        // Looked at with `kept` locked: the last to come here knows best.
        let wanted: BTreeMap<u32, Arc<dyn Instance>> = {
            let state = self.lock();
            let of = |number: u32| Some((number, state.upstreams.get(&number)?.instance.clone()));
            state.policy.keep_contexts(Instant::now()).filter_map(of).collect()
        };
        kept.extract_if(.., |number, _| !wanted.contains_key(number))
            .for_each(|(_, instance)| instance.let_context_go());
        for (number, instance) in wanted {
            kept.entry(number).or_insert_with(|| {
                instance.keep_context();
                instance
            });
        }
    }

    pub(super) fn perform(self: &Arc<Self>, action: Action) {
        let service = self.clone();
        let upstream = |number: u32| self.lock().upstreams.get(&number).cloned();
        match action {
            Action::Claim { instance, source } => {
                self.memory.claim(self.key(instance), &source);
                self.tell_shortage(instance);
            }
            Action::Move { instance, source } => {
                log::info!(
                    "an instance of the service {} is to be on {} instead",
                    self.name,
                    source.need.gpu
                );
                self.memory.moves(self.key(instance), &source);
                self.tell_shortage(instance);
            }
            Action::Withdraw { instance } => self.memory.withdraw(self.key(instance)),
            Action::Start { instance, slot, source, limit } => {
                self.runtime.spawn(async move { service.start((instance, slot), source, limit).await });
            }
            Action::Sleep { instance, level } => {
                let Some(upstream) = upstream(instance) else { return };
                upstream.keep_none();
                self.runtime.spawn_blocking(move || {
                    let slept = upstream.instance.sleep(level);
                    upstream.keep_again();
                    let source = service.instance(instance).map(|(source, _)| source);
                    // Before it can be woken, which takes more.
                    match (&slept, source) {
                        (Ok(()), Some(source)) => {
                            let holding = resting(&source, Some(level));
                            service.memory.hold(service.key(instance), &source.need.gpu, holding);
                        }
                        _ => service.memory.stays(service.key(instance)),
                    }
                    if let Err(Failure { why, .. }) = &slept {
                        log::warn!("the instance {} stays as it is: {why}", upstream.name);
                    }
                    service.act(|policy, now| policy.slept(instance, slept.is_ok(), now));
                });
            }
            Action::CallOff { instance } => {
                let Some(upstream) = upstream(instance) else { return };
                self.runtime.spawn_blocking(move || upstream.instance.call_off());
            }
            Action::Wake { instance } => {
                let Some(upstream) = upstream(instance) else { return };
                let level = self.level(instance);
                self.runtime.spawn_blocking(move || {
                    let began = Instant::now();
                    match (upstream.instance.wake(), service.instance(instance)) {
                        (Err(Failure { why, missing: Some(missing) }), Some((source, Stage::Waking))) => {
                            log::info!("the instance {} waits to be woken: {why}", upstream.name);
                            let (key, now) = (service.key(instance), Instant::now());
                            let left = resting(&source, level);
                            service.memory.found_full(key, &source, left, (missing, why), now);
                        }
                        (woke, made) => {
                            if let Some((source, _)) = made {
                                let took = woke.is_ok().then(|| began.elapsed());
                                service.tally.came(level.unwrap_or(source.level).into(), took);
                            }
                            let woke = woke.map_err(|failure| failure.why);
                            service.act(|policy, now| policy.woke(instance, woke, now));
                        }
                    }
                });
            }
            Action::End { instance } => {
                let Some(upstream) = upstream(instance) else { return };
                upstream.keep_none();
                self.runtime.spawn_blocking(move || upstream.instance.end());
            }
            Action::Send { .. } | Action::Refuse { .. } | Action::RolledOut(_) => {}
        }
    }

    /// Brings an instance up, and sees to it until its end.
    async fn start(self: Arc<Self>, (number, slot): (u32, u32), source: Source, limit: Duration) {
        let began = Instant::now();
        let (maker, name) = (self.maker.clone(), self.instance_name(slot));
        let wanted = source.clone();
        let made = spawn_blocking(move || maker.start(&wanted, &name)).await;
        let panicked = |_| {
            let why = "a thread panicked while it was started".to_string();
            Err(Failure { why, missing: None })
        };
        let instance = match made.unwrap_or_else(panicked) {
            Ok(instance) => instance,
            Err(Failure { why, missing: None }) => return self.has_failed(number, why),
            Err(Failure { why, missing: Some(missing) }) => {
                log::info!("the service {} waits for GPU memory: {why}", self.name);
                self.act(|policy, now| policy.found_full(number, now));
                match self.instance(number) {
                    None => return self.memory.gone(self.key(number)),
                    // It has claimed memory elsewhere by now.
                    Some((now, _)) if now.need.gpu != source.need.gpu => return,
                    Some(_) => {}
                }
                let (left, full) = (Holding::default(), (missing, why));
                self.memory.found_full(self.key(number), &source, left, full, Instant::now());
                return self.tell_shortage(number);
            }
        };
        let upstream = self.upstream(slot, instance.clone(), &source);
        let mut end = spawn_blocking({
            let instance = instance.clone();
            move || instance.wait_end()
        });
        let failed = tokio::select! {
            ready = timeout(limit, upstream.ready(source.ready.as_deref())) => ready.err().map(|_| {
                let (image, to) = (&source.image, source.to);
                match &source.ready {
                    Some(path) => format!("the program of image {image:?} does not answer {path} with success on its port {to}"),
                    None => format!("the program of image {image:?} does not listen on its port {to}; say by --to on which it does"),
                }
            }),
            how = &mut end => {
                let how = how.unwrap_or_default();
                let why = format!("the program of image {:?} {how} before it listened", source.image);
                return self.has_failed(number, why);
            }
        };
        if let Some(why) = failed {
            let _ = spawn_blocking(move || instance.end()).await;
            return self.has_failed(number, why);
        }
        self.tally.came(Origin::Image, Some(began.elapsed()));
        self.change(|state, now| {
            state.upstreams.insert(number, upstream.clone());
            state.policy.ready(number, now);
        });
        let how = end.await.unwrap_or_default();
        self.has_ended(number, upstream, how).await;
    }

    pub(super) async fn has_ended(self: &Arc<Self>, number: u32, upstream: Arc<Upstream>, how: String) {
        let why = format!("the program of instance {:?} {how}", upstream.name);
        self.change(|state, now| {
            state.upstreams.remove(&number);
            state.policy.ended(number, why, now);
        });
        // Who is granted its memory is to find it.
        let _ = spawn_blocking(move || upstream.instance.wait_given_back()).await;
        self.memory.gone(self.key(number));
    }

    /// One that was being started has come to nothing.
    fn has_failed(self: &Arc<Self>, number: u32, why: String) {
        self.tally.came(Origin::Image, None);
        self.not_started(number, why);
    }

    pub(super) fn not_started(self: &Arc<Self>, number: u32, why: String) {
        self.act(|policy, now| policy.not_started(number, why, now));
        self.memory.gone(self.key(number));
    }
}
