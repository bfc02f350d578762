//! What is told of services, their instances and their tenants.

use std::sync::Arc;

use prometheus_client::registry::Unit;
use rekindle_gateway::{Service, ServiceView, Stage, Tally, Workflow};
use rekindle_protocol::service_name::ServiceName;

use super::families::{Families, word};
use crate::daemon::Daemon;

/// A service, or the canary of one, under the service's name.
struct ServiceMetrics {
    shown: ServiceView,
    tally: Arc<Tally>,
    name: ServiceName,
    /// Something is wrong with it.
    problem: bool,
    canary: &'static str,
}

impl ServiceMetrics {
    fn new(daemon: &Daemon, service: &Service, of: Option<&Service>) -> ServiceMetrics {
        let shown = service.shown();
        let tls = daemon.gateway.tls(&service.name).and_then(|tls| tls.problem());
        ServiceMetrics {
            problem: shown.problem.is_some() || tls.is_some(),
            shown,
            tally: service.tally().clone(),
            name: of.unwrap_or(service).name.clone(),
            canary: if of.is_some() { "true" } else { "false" },
        }
    }

    /// Which service's requests.
    fn asked(&self) -> [(&'static str, &str); 2] {
        labels(&self.name)
    }

    /// Which image's instances.
    fn made(&self) -> [(&'static str, &str); 3] {
        let [service, tenant] = self.asked();
        [service, tenant, ("canary", self.canary)]
    }
}

/// What requests come to: a service or a workflow.
struct Asked<'a> {
    name: &'a ServiceName,
    tally: &'a Tally,
}

impl Asked<'_> {
    fn labels(&self) -> [(&'static str, &str); 2] {
        labels(self.name)
    }
}

fn labels(name: &ServiceName) -> [(&'static str, &str); 2] {
    [("service", &name.name), ("tenant", name.tenant.as_deref().unwrap_or_default())]
}

pub fn tell(families: &mut Families, daemon: &Daemon) {
    let all = daemon.gateway.all();
    all.iter().for_each(|service| service.measure());
    let services: Vec<ServiceMetrics> =
        all.iter().map(|service| ServiceMetrics::new(daemon, service, None)).collect();
    let canary =
        |service: &Arc<Service>| Some(ServiceMetrics::new(daemon, &service.canary()?.service, Some(service)));
    let canaries: Vec<ServiceMetrics> = all.iter().filter_map(canary).collect();
    let workflows = daemon.gateway.workflows();
    tell_of_requests(families, &services, &workflows);
    tell_of_workflows(families, &workflows);
    tell_of_instances(families, &services, &canaries);
    if let Some(lost) = daemon.access_log.as_ref().map(|log| log.lost()) {
        let help = "Lines that the access log lacks, for it was too slow or its disk full.";
        families.counter("access_log_lost", None, help).count(&[], lost);
    }
    tell_of_spans(families, daemon);
}

fn tell_of_spans(families: &mut Families, daemon: &Daemon) {
    let Some(tally) = daemon.spans.as_ref().map(|spans| spans.tally()) else { return };
    let help = "Sampled requests whose spans the collector has.";
    families.counter("traced_requests", None, help).count(&[], tally.sent.get());
    let help = "Sampled requests whose spans were dropped, for the collector was away or too slow.";
    families.counter("traced_requests_dropped", None, help).count(&[], tally.dropped.get());
}

fn tell_of_requests(families: &mut Families, services: &[ServiceMetrics], workflows: &[Arc<Workflow>]) {
    let of_services = services.iter().map(|one| Asked { name: &one.name, tally: &one.tally });
    let of_workflows = workflows.iter().map(|one| Asked { name: &one.name, tally: one.tally() });
    let asked: Vec<Asked<'_>> = of_services.chain(of_workflows).collect();
    let help = "Requests that are through, by the status of their answer; none: the client had gone before.";
    let family = families.counter("service_requests", None, help);
    for one in &asked {
        for (class, count) in one.tally.answers() {
            family.count(&[&one.labels()[..], &[("status", class.name())]].concat(), count);
        }
    }
    let help = "Requests that were sent to no instance, by the reason.";
    let family = families.counter("service_rejections", None, help);
    for one in &asked {
        for (reason, count) in one.tally.rejections() {
            family.count(&[&one.labels()[..], &[("reason", reason.name())]].concat(), count);
        }
    }
    let help = "Requests that were sent to a further instance, for one had gone.";
    let family = families.counter("service_retries", None, help);
    services.iter().for_each(|one| family.count(&one.asked(), one.tally.retries.get()));
    let help = "How long requests waited for an instance.";
    let family = families.durations("service_queue", help);
    services.iter().for_each(|one| family.took(&one.asked(), &one.tally.queued));
    let help =
        "How long requests took that an instance had, from when they came until their answer was through.";
    let family = families.durations("service_request", help);
    asked.iter().for_each(|one| family.took(&one.labels(), &one.tally.whole));
    let family = families.gauge("service_queue_limit", None, "How many requests may wait.");
    services.iter().for_each(|one| family.is(&one.asked(), one.shown.plan.queue.into()));
    let family = families.gauge("service_instances_limit", None, "How many instances there may be.");
    services.iter().for_each(|one| family.is(&one.asked(), one.shown.plan.max.into()));
    let help = "Whether something is wrong that `rekindle services` tells.";
    let family = families.gauge("service_problem", None, help);
    services.iter().for_each(|one| family.is(&one.asked(), one.problem.into()));
}

fn tell_of_workflows(families: &mut Families, workflows: &[Arc<Workflow>]) {
    let help = "Requests that are under way in workflows.";
    let family = families.gauge("workflow_in_flight", None, help);
    workflows.iter().for_each(|one| family.is(&labels(&one.name), one.in_flight().into()));
    let family = families.gauge("workflow_limit", None, "How many requests may be under way in a workflow.");
    workflows.iter().for_each(|one| family.is(&labels(&one.name), one.graph().most.into()));
    let help = "Whether a service is not there that a workflow calls.";
    let family = families.gauge("workflow_problem", None, help);
    workflows.iter().for_each(|one| family.is(&labels(&one.name), one.shown().problem.is_some().into()));
}

fn tell_of_instances(families: &mut Families, services: &[ServiceMetrics], canaries: &[ServiceMetrics]) {
    let all = || services.iter().chain(canaries);
    let family = families.gauge("service_queued", None, "Requests that wait for an instance.");
    all().for_each(|one| family.is(&one.made(), one.shown.queued as u64));
    let family = families.gauge("service_in_flight", None, "Requests that instances have.");
    all().for_each(|one| family.is(&one.made(), one.shown.in_flight.into()));
    let family = families.gauge("service_instances", None, "Instances, by their stage.");
    for one in all() {
        for (stage, name) in Stage::ALL.map(|stage| (stage, word(stage))) {
            let count = one.shown.instances.iter().filter(|instance| instance.stage == stage).count();
            family.is(&[&one.made()[..], &[("stage", &*name)]].concat(), count as u64);
        }
    }
    let help = "GPU memory of instances.";
    let family = families.gauge("service_gpu_memory", Some(Unit::Bytes), help);
    all().for_each(|one| family.is(&one.made(), one.shown.gpu_bytes));
    let help = "How long instances took to be ready, by what they came from.";
    let family = families.durations("service_start", help);
    for one in all() {
        for (origin, coming) in one.tally.comings() {
            family.took(&[&one.made()[..], &[("from", origin.name())]].concat(), &coming.took);
        }
    }
    let help = "Instances that did not come to be ready, by what they were to come from.";
    let family = families.counter("service_start_failures", None, help);
    for one in all() {
        for (origin, coming) in one.tally.comings() {
            let labels = [&one.made()[..], &[("from", origin.name())]].concat();
            family.count(&labels, coming.failed.get());
        }
    }
}

pub fn tell_of_tenants(families: &mut Families, daemon: &Daemon) {
    let all = daemon.gateway.tenants().all();
    let used = |name: &str| daemon.gateway.memory().used_by(name);
    let help = "GPU memory of all instances of a tenant's services.";
    let family = families.gauge("tenant_gpu_memory", Some(Unit::Bytes), help);
    all.iter().for_each(|one| family.is(&[("tenant", &one.name)], used(&one.name).1));
    let help = "GPU memory that a tenant's services may have.";
    let family = families.gauge("tenant_gpu_memory_limit", Some(Unit::Bytes), help);
    all.iter().for_each(|one| family.may_be(&[("tenant", &one.name)], one.quota().memory_bytes));
    let family = families.gauge("tenant_instances", None, "Instances of a tenant's services.");
    all.iter().for_each(|one| family.is(&[("tenant", &one.name)], used(&one.name).0 as u64));
    let help = "Instances that a tenant's services may have.";
    let family = families.gauge("tenant_instances_limit", None, help);
    for one in &all {
        family.may_be(&[("tenant", &one.name)], one.quota().instances.map(|most| most.get().into()));
    }
    let help = "Requests that came more often than the tenant's may.";
    let family = families.counter("tenant_rate_limited", None, help);
    all.iter().for_each(|one| family.count(&[("tenant", &one.name)], one.too_often()));
}
