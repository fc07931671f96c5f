//! What single built-in kinds do when they are written, beyond what all do: [`Steps`], a table by kind
//! (`pkg/registry/*/*/strategy.go`). Which fields never change is in [`super::validate`], and what a write
//! reaches at all is in [`super::scope`].
//!
//! ```text
//!  decode ─▶ defaults ─▶ create │ update ─▶ … ─▶ judge
//! ```

pub(crate) mod certificates;

use listwatch_validation::clock::timestamp;
use listwatch_validation::{Object, child_mut, metadata};
use serde_json::Value;

use crate::Subresource;
use crate::kind::{CreateContext, UpdateContext};
use crate::versions::autoscaling;

pub(crate) fn drop_carriers(autoscaler: &mut Object) -> Result<(), String> {
    autoscaling::drop_carriers(autoscaler);
    Ok(())
}

/// A volume is in its first phase since it is there.
pub(crate) fn begin_phase(volume: &mut Object, _: CreateContext<'_>) {
    let since = metadata(volume).get("creationTimestamp").cloned().unwrap_or_default();
    child_mut(volume, "status").insert("lastPhaseTransitionTime".to_owned(), since);
}

/// A volume that enters another phase has done so now, unless the client says when.
pub(crate) fn enter_phase(volume: &mut Object, old: &Object, context: UpdateContext<'_>) {
    const SINCE: &str = "lastPhaseTransitionTime";
    if context.subresource != Some(&Subresource::Status) {
        return;
    }
    let read = |volume: &Object, name: &str| volume.get("status").and_then(|status| status.get(name)).cloned();
    let (phase, since) = (read(volume, "phase"), read(volume, SINCE));
    let (phase_before, since_before) = (read(old, "phase"), read(old, SINCE));
    let since = match (phase == phase_before, since) {
        (true, None) => since_before,
        (false, since) if since.is_none() || since == since_before => Some(Value::String(timestamp(context.now))),
        (_, since) => since,
    };
    if let Some(since) = since {
        child_mut(volume, "status").insert(SINCE.to_owned(), since);
    }
}
