//! Workflows of services: where their clients come, and what the next daemon has of them. The [gateway](rekindle_gateway)
//! follows their graphs.

use std::collections::BTreeMap;
use std::sync::Arc;

use rekindle_gateway::Workflow;
use rekindle_protocol::network::Port;
use rekindle_protocol::service::WorkflowRequest;
use rekindle_protocol::service_name::ServiceName;
use serde_json::{Value, json};

use super::workflow_record::WorkflowRecord;
use super::{LOOK, ServiceError, certificate, listen, naming, show_tls, socket, tls};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::records::StoredRecord;
use crate::reply::Reply;
use crate::tenants;

/// How often a port is asked for again that another program has.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// Makes a workflow, or has requests that come from now on follow another graph.
pub fn serve(daemon: &Arc<Daemon>, name: &str, request: &WorkflowRequest) -> Result<Value> {
    naming::check(name)?;
    let name = &naming::meant(daemon, name, request.tenant.as_deref())?;
    let _serving = daemon.serving.take(name)?;
    check(daemon, name, request)?;
    let former = daemon.gateway.workflow(name);
    let kept = former.as_ref().map(|_| load(daemon, name)).transpose()?;
    let tls = tls(request.tls.as_ref(), kept.as_ref().and_then(|kept| kept.tls.as_ref()));
    let certificate = certificate(daemon, name, tls.as_ref())?;
    let mut port = request.port.or(kept.as_ref().map(|kept| kept.port)).unwrap_or(FREE);
    let is_there = kept.as_ref().is_some_and(|kept| {
        (kept.port.address, kept.port.port) == (port.address, port.port) && daemon.gateway.is_open(name)
    });
    let listener = if is_there { None } else { Some(listen(name, &mut port)?) };
    let membership = match (&name.tenant, &former) {
        (Some(tenant), None) => Some(tenants::join(daemon, tenant, &name.name)?),
        _ => None,
    };
    let graph = request.graph.clone();
    let record = WorkflowRecord {
        name: name.name.clone(),
        tenant: name.tenant.clone(),
        port,
        graph: graph.clone(),
        tls,
    };
    record.save(&daemon.paths.workflows())?;
    let workflow = match former {
        Some(workflow) => {
            workflow.replace(graph);
            workflow
        }
        None => daemon.gateway.add_workflow(name, membership, graph),
    };
    let served = |source| Error::system("serve a port", source);
    daemon.gateway.secure(name, certificate).map_err(served)?;
    if let Some(listener) = listener {
        socket::listen(daemon, name);
        daemon.gateway.listen(name, listener).map_err(served)?;
    }
    log::info!("the workflow {name} has {} steps, at port {}", record.graph.steps.len(), record.port.port);
    Ok(shown(daemon, &workflow, &record))
}

/// Of this machine alone, and one that nobody has.
const FREE: Port =
    Port { address: Some(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)), port: 0, to: 0 };

/// What the graph says, and that there is all that it calls.
fn check(daemon: &Daemon, name: &ServiceName, request: &WorkflowRequest) -> Result<()> {
    if daemon.gateway.get(name).is_some() {
        return Err(ServiceError::IsService { name: name.clone() }.into());
    }
    let bad = |source| ServiceError::BadGraph { name: name.clone(), source: Box::new(source) };
    request.graph.check().map_err(bad)?;
    for step in &request.graph.steps {
        let service = Box::new(ServiceName::new(step.tenant.as_deref(), &step.service));
        let (name, step) = (name.clone(), step.name.clone());
        if service.tenant.is_some() && service.tenant != name.tenant {
            return Err(ServiceError::ForeignStep { name, step, service }.into());
        }
        if daemon.gateway.get(&service).is_none() {
            return Err(ServiceError::NoService { name, step, service }.into());
        }
    }
    Ok(())
}

/// All, or those of a tenant, or of nobody.
pub fn list(daemon: &Daemon, whose: Option<Option<&str>>) -> Result<Vec<Value>> {
    let records = WorkflowRecord::load_all(&daemon.paths.workflows())?;
    let records: BTreeMap<ServiceName, WorkflowRecord> =
        records.into_iter().map(|record| (record.named(), record)).collect();
    let all = daemon.gateway.workflows().into_iter();
    let wanted = all.filter(|workflow| whose.is_none_or(|whose| workflow.name.tenant.as_deref() == whose));
    Ok(wanted.filter_map(|workflow| Some(shown(daemon, &workflow, records.get(&workflow.name)?))).collect())
}

/// Has nobody come any more, and waits for those that are under way, or ends them `now`.
pub fn remove(daemon: &Daemon, workflow: &Arc<Workflow>, now: bool, reply: &Reply<'_>) -> Result<Value> {
    let name = &workflow.name;
    let record = load(daemon, name)?;
    daemon.gateway.close(name);
    socket::remove(daemon, name);
    reply.progress("drain", 0, 0);
    if now {
        workflow.end_all();
    }
    while workflow.in_flight() > 0 {
        // It goes on with that.
        reply.check_wanted()?;
        std::thread::sleep(LOOK);
    }
    let last = shown(daemon, workflow, &record);
    daemon.gateway.remove(name);
    WorkflowRecord::remove(&daemon.paths.workflows(), &name.word())?;
    Ok(last)
}

/// Takes over what an earlier daemon has served.
pub fn resume(daemon: &Arc<Daemon>) -> Result<()> {
    for record in WorkflowRecord::load_all(&daemon.paths.workflows())? {
        let name = record.named();
        if let Err(error) = bring_back(daemon, record) {
            log::error!("the workflow {name} is not there: {error}");
        }
    }
    Ok(())
}

fn bring_back(daemon: &Arc<Daemon>, record: WorkflowRecord) -> Result<()> {
    let name = record.named();
    // Without its tenant it would be open to everybody.
    let membership =
        name.tenant.as_ref().map(|tenant| tenants::join(daemon, tenant, &name.name)).transpose()?;
    daemon.gateway.add_workflow(&name, membership, record.graph.clone());
    socket::listen(daemon, &name);
    let (daemon, mut port) = (daemon.clone(), record.port);
    let mut listening = move || {
        if daemon.gateway.workflow(&name).is_none() || daemon.gateway.is_open(&name) {
            return true;
        }
        let served = |source| Error::system("serve a port", source);
        // Without its certificate nobody comes.
        let secured = certificate(&daemon, &name, record.tls.as_ref())
            .and_then(|tls| daemon.gateway.secure(&name, tls).map_err(served));
        let heard = secured
            .and_then(|()| listen(&name, &mut port))
            .and_then(|listener| daemon.gateway.listen(&name, listener).map_err(served));
        heard.inspect_err(|error| log::warn!("nobody comes to the workflow {name}: {error}")).is_ok()
    };
    if !listening() {
        std::thread::spawn(move || {
            while !listening() {
                std::thread::sleep(AGAIN);
            }
        });
    }
    Ok(())
}

fn load(daemon: &Daemon, name: &ServiceName) -> Result<WorkflowRecord> {
    WorkflowRecord::load(&daemon.paths.workflows(), &name.word())
        .map_err(|source| ServiceError::NoRecord { name: name.clone(), source }.into())
}

fn shown(daemon: &Daemon, workflow: &Workflow, record: &WorkflowRecord) -> Value {
    let mut shown = json!(workflow.shown());
    shown["address"] = json!(record.port.address);
    shown["port"] = json!(record.port.port);
    shown["socket"] = json!(socket::place(daemon, &workflow.name));
    show_tls(daemon, &workflow.name, record.tls.as_ref(), &mut shown);
    shown
}
