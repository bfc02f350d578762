//! A service that runs: what its [policy](crate::policy) decides is done here.
//!
//! All that happens goes through [`Service::act`]; what is to be done about it is done once the policy is free again. What
//! blocks is done in threads of its own.

mod instances;
mod room;

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use rekindle_protocol::daemon::Level;
use rekindle_protocol::service_name::ServiceName;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::sleep_until;

use crate::canary::{Canary, CanaryView};
use crate::history::{History, Lane};
use crate::instance_slot::InstanceSlot;
use crate::latency::{Latency, Quantiles};
use crate::maker::{Instance, Maker};
use crate::memory::{Holding, Memory};
use crate::plan::{Plan, Source};
use crate::policy::{Action, Coming, Counts, Near, Outcome, Policy, Refusal, Stage};
use crate::tally::Tally;
use crate::tenant::{Tenant, Tenants};
use crate::upstream::Upstream;
use room::resting;

/// The longest time for which nothing is looked at.
const LONG: Duration = Duration::from_secs(3600);

pub struct Service {
    pub name: ServiceName,
    /// What the names of its instances begin with.
    stem: String,
    /// By which the [memory](crate::memory) knows it.
    pub(crate) number: u64,
    /// Who is let in, if not everybody is.
    pub(crate) entrance: Option<TenantAccess>,
    memory: Arc<Memory>,
    maker: Arc<dyn Maker>,
    runtime: Handle,
    state: Mutex<State>,
    /// Somebody waits for the service to be drained.
    drained: Condvar,
    /// Who sleeps and has a context kept.
    contexts: Mutex<BTreeMap<u32, Arc<dyn Instance>>>,
    /// Something is to be done earlier than was known.
    sooner: Arc<Notify>,
    /// Another image that some of its requests go to.
    canary: Mutex<Option<Arc<Canary>>>,
    tally: Arc<Tally>,
}

/// What the clients of a tenant's service come by.
pub(crate) struct TenantAccess {
    pub tenants: Arc<Tenants>,
    pub tenant: Arc<Tenant>,
}

struct State {
    policy: Policy,
    waiting: HashMap<u64, oneshot::Sender<Verdict>>,
    upstreams: HashMap<u32, Arc<Upstream>>,
    /// Who wants to know how the rollout went.
    rollout: Option<Sender<Result<(), RolloutError>>>,
    /// When the policy is asked next.
    next: Option<Instant>,
    /// What is wrong beside the policy's matters.
    fault: Option<String>,
    /// Why an instance came to nothing, the first that did.
    trouble: Option<String>,
    history: History,
    latency: Latency,
}

/// Why an image does not serve that was to; all is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    #[error("another image is just being rolled out to the service {service}; wait for that")]
    UnderWay { service: ServiceName },
    #[error("the rollout was given up")]
    GivenUp,
    /// Why none came to listen.
    #[error("{0}")]
    NoInstance(String),
}

/// What becomes of a request.
pub enum Verdict {
    Sent(InstanceSlot),
    Refused(Refusal),
}

/// A service as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceView {
    pub name: String,
    pub tenant: Option<String>,
    pub source: Option<Source>,
    pub plan: Plan,
    pub instances: Vec<InstanceView>,
    pub queued: usize,
    pub in_flight: u32,
    /// GPU memory of all instances, bytes.
    pub gpu_bytes: u64,
    #[serde(flatten)]
    pub counts: Counts,
    /// How long requests took of late until their answer began.
    pub latency: Option<Quantiles>,
    pub draining: bool,
    pub problem: Option<String>,
    pub canary: Option<CanaryView>,
}

#[derive(Clone, Debug, Serialize)]
pub struct InstanceView {
    pub name: String,
    pub stage: Stage,
    /// Where its GPU memory is while it sleeps.
    pub level: Option<Level>,
    pub in_flight: u32,
    pub gpu_bytes: u64,
    /// The GPU that it is on; the first of several.
    pub gpu: String,
}

impl Service {
    pub(crate) fn begin(
        (runtime, memory): (&Handle, Arc<Memory>),
        (name, stem): (&str, &str),
        entrance: Option<TenantAccess>,
        plan: Plan,
        source: Option<Source>,
        maker: Arc<dyn Maker>,
    ) -> Arc<Service> {
        let state = State {
            policy: Policy::new(plan, source),
            waiting: HashMap::new(),
            upstreams: HashMap::new(),
            rollout: None,
            next: None,
            fault: None,
            trouble: None,
            history: History::default(),
            latency: Latency::default(),
        };
        let service = Arc::new(Service {
            name: ServiceName::new(entrance.as_ref().map(|entrance| &*entrance.tenant.name), name),
            stem: stem.to_string(),
            number: memory.number(),
            entrance,
            memory,
            maker,
            runtime: runtime.clone(),
            state: Mutex::new(state),
            drained: Condvar::new(),
            contexts: Mutex::default(),
            sooner: Arc::default(),
            canary: Mutex::default(),
            tally: Arc::default(),
        });
        service.memory.join(&service);
        runtime.spawn(keep_time(Arc::downgrade(&service), service.sooner.clone()));
        service
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn maker(&self) -> &Arc<dyn Maker> {
        &self.maker
    }

    /// Whose it is, if it is somebody's.
    pub fn tenant(&self) -> Option<&Arc<Tenant>> {
        self.entrance.as_ref().map(|entrance| &entrance.tenant)
    }

    /// What is counted of it. A canary's requests count with its service's, and its instances by themselves.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Waits for a place at an instance.
    pub(crate) async fn acquire_slot(
        self: &Arc<Self>,
        deadline: Instant,
        coming: Coming,
        (counts, near): (bool, Option<String>),
    ) -> Verdict {
        let (sender, receiver) = oneshot::channel();
        let near = near.map(|gpu| Near { has_room: self.has_room(&gpu), gpu });
        let mut request = 0;
        self.change(|state, now| {
            request = state.policy.arrive(now, deadline, coming, (counts, near));
            state.waiting.insert(request, sender);
        });
        let mut waits = QueuedRequest { service: self, request, receiver, is_told: false };
        let verdict = (&mut waits.receiver).await;
        waits.is_told = true;
        verdict.unwrap_or(Verdict::Refused(Refusal::Draining))
    }

    /// Has another image take the place of the one that there is, if it serves; the answer comes then.
    pub fn roll_out(self: &Arc<Self>, source: Source, plan: Plan) -> Result<(), RolloutError> {
        let (sender, receiver): (_, Receiver<_>) = channel();
        let mut begun = false;
        self.change(|state, now| {
            self.note_rooms(&mut state.policy, Some(&source));
            begun = state.policy.roll_out(source, plan, now);
            if begun {
                state.rollout = Some(sender);
            }
        });
        match begun {
            true => receiver.recv().unwrap_or(Err(RolloutError::GivenUp)),
            false => Err(RolloutError::UnderWay { service: self.name.clone() }),
        }
    }

    pub fn replan(self: &Arc<Self>, plan: Plan) {
        self.act(|policy, now| policy.replan(plan, now));
    }

    /// What instances need is known better by now.
    pub fn learn(self: &Arc<Self>, source: &Source) {
        self.act(|policy, _| policy.learn(source));
    }

    /// Shows what is wrong beside what the policy knows, or that it is not any more.
    pub fn report(&self, fault: Option<String>) {
        self.lock().fault = fault;
    }

    pub fn plan(&self) -> Plan {
        self.lock().policy.plan().clone()
    }

    pub fn source(&self) -> Option<Source> {
        self.lock().policy.source().cloned()
    }

    /// Takes no more requests, and ends the instances when those that there are have been answered.
    pub fn drain(self: &Arc<Self>) {
        self.act(|policy, now| policy.drain(now));
    }

    /// Ends all instances, whatever they do.
    pub fn end_all(self: &Arc<Self>) {
        self.act(|policy, now| policy.end_all(now));
    }

    /// Waits until nothing runs any more, or for so long; whether that is so.
    pub fn wait_drained(&self, limit: Duration) -> bool {
        let state = self.lock();
        let done = self.drained.wait_timeout_while(state, limit, |state| !state.policy.is_drained());
        done.map_or_else(|error| error.into_inner().0, |pair| pair.0).policy.is_drained()
    }

    /// Takes over an instance that was there before.
    pub fn adopt(
        self: &Arc<Self>,
        slot: u32,
        instance: Arc<dyn Instance>,
        asleep: Option<Level>,
        source: &Source,
    ) {
        let is_current = self.source().is_some_and(|own| own.makes_the_same(source));
        let upstream = self.upstream(slot, instance, source);
        let mut number = 0;
        self.change(|state, now| {
            number = state.policy.adopt(slot, asleep, (source, is_current), now);
            state.upstreams.insert(number, upstream.clone());
        });
        let need = &source.need;
        let awake = || Holding { own: need.program + need.context, data: need.data.clone() };
        let holding = if asleep.is_some() { resting(source, asleep) } else { awake() };
        self.memory.hold(self.key(number), &need.gpu, holding);
        let service = self.clone();
        self.runtime.spawn(async move {
            let instance = upstream.instance.clone();
            let how = spawn_blocking(move || instance.wait_end()).await.unwrap_or_default();
            service.has_ended(number, upstream, how).await;
        });
    }

    /// Has some of the requests go to another image's instances, or none any more. What there was.
    pub fn set_canary(&self, canary: Option<Arc<Canary>>) -> Option<Arc<Canary>> {
        std::mem::replace(&mut *self.canary_place(), canary)
    }

    pub fn canary(&self) -> Option<Arc<Canary>> {
        self.canary_place().clone()
    }

    fn canary_place(&self) -> MutexGuard<'_, Option<Arc<Canary>>> {
        self.canary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why an instance of it came to nothing, if ever one did.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    pub fn shown(&self) -> ServiceView {
        let canary = self.canary().map(|canary| canary.shown());
        let state = self.lock();
        let policy = &state.policy;
        let instances: Vec<InstanceView> = policy
            .instances()
            .map(|(number, slot, stage, in_flight)| InstanceView {
                name: self.instance_name(slot),
                stage,
                level: policy.level(number),
                in_flight,
                gpu_bytes: self.memory.bytes(self.key(number)),
                gpu: policy.instance(number).map(|(source, _)| source.need.gpu.clone()).unwrap_or_default(),
            })
            .collect();
        ServiceView {
            name: self.name.name.clone(),
            tenant: self.name.tenant.clone(),
            source: policy.source().cloned(),
            plan: policy.plan().clone(),
            in_flight: instances.iter().map(|instance| instance.in_flight).sum(),
            gpu_bytes: instances.iter().map(|instance| instance.gpu_bytes).sum(),
            instances,
            queued: policy.queued(),
            counts: policy.counts(),
            latency: state.latency.quantiles(Instant::now()),
            draining: policy.is_draining(),
            problem: state.fault.clone().or_else(|| policy.problem().map(str::to_string)),
            canary,
        }
    }

    /// Through which stages instances came of late.
    pub fn lanes(&self) -> Vec<Lane> {
        self.lock().history.lanes(SystemTime::now())
    }

    /// The answer to a request has begun, which came so long ago.
    pub(crate) fn took(&self, time: Duration) {
        self.lock().latency.note(time, Instant::now());
    }

    fn instance_name(&self, slot: u32) -> String {
        format!("{}{slot}", self.stem)
    }

    /// Something has happened: tells the policy, and does what that wants.
    pub(crate) fn act(self: &Arc<Self>, event: impl FnOnce(&mut Policy, Instant)) {
        self.change(|state, now| event(&mut state.policy, now));
    }

    fn change(self: &Arc<Self>, event: impl FnOnce(&mut State, Instant)) {
        let now = Instant::now();
        let mut state = self.lock();
        let placed = state.policy.placed().filter(|source| source.gpus.len() > 1).cloned();
        self.note_rooms(&mut state.policy, placed.as_ref());
        self.note_rooms_to_wake(&mut state.policy);
        event(&mut state, now);
        let actions = state.policy.take();
        let State { policy, history, .. } = &mut *state;
        let stages =
            policy.instances().map(|(number, slot, stage, _)| (number, slot, (stage, policy.level(number))));
        history.note(stages, |slot| self.instance_name(slot), SystemTime::now());
        if state.trouble.is_none() && state.policy.came_to_nothing_last() {
            state.trouble = state.policy.problem().map(str::to_string);
        }
        // With the policy locked, what is to be told to whom is found; it is told without.
        let (mut verdicts, mut rest) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Send { request, instance } => {
                    let upstream = state.upstreams.get(&instance).cloned();
                    verdicts.push((state.waiting.remove(&request), Ok((instance, upstream))));
                }
                Action::Refuse { request, why } => verdicts.push((state.waiting.remove(&request), Err(why))),
                Action::RolledOut(how) => {
                    if let Some(sender) = state.rollout.take() {
                        let _ = sender.send(how.map_err(RolloutError::NoInstance));
                    }
                }
                other => rest.push(other),
            }
        }
        let are_wanted = !state.policy.plan().context().is_zero();
        let next = state.policy.next_tick(now);
        let is_sooner = next.is_some_and(|next| state.next.is_none_or(|known| next < known));
        if is_sooner || state.next.is_some_and(|known| known <= now) {
            state.next = next;
        }
        if state.policy.is_drained() {
            self.drained.notify_all();
        }
        drop(state);
        if is_sooner {
            self.sooner.notify_one();
        }
        for (waiting, verdict) in verdicts {
            self.tell(waiting, verdict);
        }
        for action in rest {
            self.perform(action);
        }
        self.keep_contexts(are_wanted);
        self.memory.look();
    }

    /// One that is not heard gives its place back by itself.
    fn tell(
        self: &Arc<Self>,
        waiting: Option<oneshot::Sender<Verdict>>,
        verdict: Result<(u32, Option<Arc<Upstream>>), Refusal>,
    ) {
        let verdict = match verdict {
            Ok((instance, Some(upstream))) => {
                Verdict::Sent(InstanceSlot::new(self.clone(), instance, upstream))
            }
            Ok((instance, None)) => {
                log::error!("the service {} has no way to its instance {instance}", self.name);
                self.act(|policy, now| policy.done(instance, Outcome::Unheard, now));
                return;
            }
            Err(why) => Verdict::Refused(why),
        };
        if let Some(waiting) = waiting {
            let _ = waiting.send(verdict);
        }
    }

    fn instance(&self, number: u32) -> Option<(Source, Stage)> {
        self.lock().policy.instance(number).map(|(source, stage)| (source.clone(), stage))
    }

    /// Where an instance sleeps, if it does.
    fn level(&self, number: u32) -> Option<Level> {
        self.lock().policy.level(number)
    }

    fn key(&self, number: u32) -> (u64, u32) {
        (self.number, number)
    }

    fn upstream(&self, slot: u32, instance: Arc<dyn Instance>, source: &Source) -> Arc<Upstream> {
        Upstream::new(instance, self.instance_name(slot), source)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.memory.leave(self.number);
        self.sooner.notify_one();
    }
}

/// Tells the policy when it is time for something.
async fn keep_time(service: Weak<Service>, sooner: Arc<Notify>) {
    let next = || service.upgrade().map(|service| service.lock().next);
    while let Some(next) = next() {
        let next = next.unwrap_or_else(|| Instant::now() + LONG);
        tokio::select! {
            () = sleep_until(next.into()) => {}
            () = sooner.notified() => continue,
        }
        if let Some(service) = service.upgrade() {
            service.act(|policy, now| policy.tick(now));
        }
    }
}

/// A request that waits. Its client may go.
struct QueuedRequest<'a> {
    service: &'a Arc<Service>,
    request: u64,
    receiver: oneshot::Receiver<Verdict>,
    is_told: bool,
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let request = self.request;
        if self.is_told {
            return;
        }
        self.service.change(|state, now| {
            if state.waiting.remove(&request).is_some() {
                state.policy.gone(request, now);
            }
        });
    }
}
