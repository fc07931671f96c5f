//! Writes the condition `Dangling` of flow schemas (`digestConfigObjects` in `util/flowcontrol/apf_controller.go`).

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::ready;
use listwatch_flow_control::{BootstrapKind, DanglingCondition};
use listwatch_json::{Map, json};
use listwatch_kinds::conditions::{self, NewCondition};
use listwatch_meta::Status;
use listwatch_validation::clock::Clock;
use listwatch_write::{Amendment, Writer};
use tokio::time::Instant;

use super::resource;

/// Maximum number of status writes for one schema in [`WRITES_PERIOD`]. Without the limit, servers with different
/// configurations would overwrite each other's conditions continuously.
const WRITES_MAX: u32 = 6;
const WRITES_PERIOD: Duration = Duration::from_secs(60);
/// Number of conditions that are written concurrently.
const WRITES_AT_ONCE: usize = 16;

/// Writes conditions at a limited rate.
#[derive(Debug, Default)]
pub(super) struct ConditionWriter {
    /// The number of writes of each schema in the current period.
    writes: HashMap<String, u32>,
    period_end: Option<Instant>,
}

impl ConditionWriter {
    /// Writes conditions. Returns false if the rate limit delays a condition.
    pub(super) async fn write(&mut self, writer: &Writer, conditions: Vec<DanglingCondition>) -> bool {
        let now = Instant::now();
        if self.period_end.is_none_or(|end| end <= now) {
            self.writes.clear();
            self.period_end = Some(now + WRITES_PERIOD);
        }
        let missing = conditions.len();
        let allowed = conditions.into_iter().filter(|condition| {
            let writes = self.writes.entry(condition.schema.clone()).or_default();
            *writes += 1;
            *writes <= WRITES_MAX
        });
        // A store on disk or across a network orders concurrent writes in one batch.
        let written = futures_util::stream::iter(allowed)
            .map(|condition| async move {
                let outcome = write(writer, &condition).await;
                if let Err(status) = &outcome {
                    tracing::warn!(%status, schema = condition.schema, "cannot write the condition of a flow schema");
                }
                outcome.is_ok()
            })
            .buffer_unordered(WRITES_AT_ONCE)
            .filter(|is_written| ready(*is_written))
            .count()
            .await;
        written == missing
    }
}

async fn write(writer: &Writer, condition: &DanglingCondition) -> Result<(), Status> {
    let Some(resource) = resource(writer, BootstrapKind::FlowSchema) else { return Ok(()) };
    let key = resource.key(None, &condition.schema)?;
    let now = Clock::default().now();
    writer.amend(&resource, &key, |schema| set(schema, condition, &now)).await
}

fn set(schema: &mut Map, condition: &DanglingCondition, now: &str) -> Amendment {
    let status = schema.entry("status").or_insert_with(|| json!({}));
    if !status.is_object() {
        *status = json!({});
    }
    let list = &mut status["conditions"];
    if !list.is_array() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        let DanglingCondition { status, reason, message, .. } = condition;
        conditions::set(list, NewCondition { kind: "Dangling", status, reason, message }, now);
    }
    Amendment::Write
}
