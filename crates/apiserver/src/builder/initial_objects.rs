//! Creates and reads the objects that flow control and RBAC need, before the server accepts requests.

use std::sync::Arc;

use listwatch_access::rbac::RbacState;
use listwatch_controllers::{Controllers, flow_control, rbac};
use listwatch_meta::Status;
use listwatch_write::Writer;
use tokio::task::JoinSet;

use crate::flow_control::Fairness;

/// Creates the flow schemas and priority levels that every cluster has, and reads all of them, so that the first
/// request is classified correctly.
pub(super) async fn prepare_flow_control(writer: &Arc<Writer>, fairness: &Fairness) -> Result<(), Status> {
    // The controller tries again. An object that cannot be written must not keep the server from starting.
    if let Err(status) = flow_control::ensure_objects(writer).await {
        tracing::warn!(%status, "cannot create the flow schemas and priority levels that every cluster has");
    }
    flow_control::load(writer, fairness).await
}

/// Starts a task that creates the default roles and bindings, and reads all of them, so that the first request is decided
/// correctly. Most objects of a first start are roles and bindings; the server writes the others meanwhile.
pub(super) fn spawn_roles(
    writer: &Arc<Writer>,
    state: Option<&Arc<RbacState>>,
    controllers: Controllers,
) -> JoinSet<Result<(), Status>> {
    let tasks = state.map(|state| prepare_rbac(Arc::clone(writer), Arc::clone(state), controllers));
    tasks.into_iter().collect()
}

/// Waits for tasks. A panic is an error.
pub(super) async fn finish(mut tasks: JoinSet<Result<(), Status>>) -> Result<(), Status> {
    while let Some(done) = tasks.join_next().await {
        done.unwrap_or_else(|panic| Err(Status::internal(panic)))?;
    }
    Ok(())
}

async fn prepare_rbac(writer: Arc<Writer>, state: Arc<RbacState>, controllers: Controllers) -> Result<(), Status> {
    rbac::ensure_policy(&writer).await?;
    if controllers.clusterrole_aggregation {
        // The controller tries again. A role that cannot be written must not keep the server from starting.
        if let Err(status) = rbac::aggregate(&writer).await {
            tracing::warn!(%status, "cannot aggregate ClusterRoles");
        }
    }
    rbac::load(&writer, &state).await
}
