//! [`VersionConversions`]: the conversions of the object of one write to the versions of its field managers.
//!
//! Upstream's field manager calls the converter during the comparison of objects. Here, the comparison performs no I/O.
//! The comparison looks up each conversion, and stops at the first unknown conversion. The pipeline then converts the
//! object and repeats the comparison:
//!
//! ```text
//!  Kind::apply_to ─▶ look up (object, version) ─┬─ known ──▶ goes on
//!        ▲                                      └─ unknown ─▶ fails; VersionConversions::resolve calls the webhook
//!        └──────────────────────────────────────────────────────────────┘
//! ```

use std::sync::Arc;
use std::time::Instant;

use listwatch_apply::Kind;
use listwatch_json::Value;
use listwatch_registry::Resource;
use parking_lot::Mutex;

use super::ownership;

/// Maximum number of conversions for the field managers of one write. Further conversions fail; an apply then fails
/// too.
const CONVERSIONS_MAX: usize = 64;

/// The conversions of one write of a custom resource with a conversion webhook.
#[derive(Debug)]
pub(super) struct VersionConversions {
    state: Arc<Mutex<State>>,
    deadline: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    /// Objects, the versions to which they were converted, and the results.
    known: Vec<(Value, String, Result<Value, String>)>,
    /// The unknown conversion at which the last comparison stopped.
    wanted: Option<(Value, String)>,
}

impl State {
    fn look_up(&mut self, object: &Value, api_version: &str) -> Result<Value, String> {
        let known = self.known.iter().find(|(from, to, _)| to == api_version && from == object);
        if let Some((_, _, result)) = known {
            return result.clone();
        }
        if self.known.len() >= CONVERSIONS_MAX {
            return Err(format!("the write needs more than {CONVERSIONS_MAX} conversions"));
        }
        self.wanted = Some((object.clone(), api_version.to_owned()));
        Err("the object is not converted yet".to_owned())
    }
}

impl VersionConversions {
    pub(super) fn new(deadline: Option<Instant>) -> Self {
        VersionConversions { state: Arc::default(), deadline }
    }

    /// Returns the merge rules with these conversions.
    pub(super) fn kind(&self, kind: &Kind) -> Kind {
        let state = Arc::clone(&self.state);
        kind.clone().with_converter(Arc::new(move |object, api_version| state.lock().look_up(object, api_version)))
    }

    /// Runs the conversion at which the last comparison stopped. Returns false if all conversions were known. In this
    /// case, the result of the comparison is valid.
    pub(super) async fn resolve(&self, resource: &Resource) -> bool {
        let Some((object, api_version)) = self.state.lock().wanted.take() else { return false };
        let tree = ownership::as_map(&object).clone();
        let result = resource.convert_to(tree, &api_version, self.deadline).await.map(Value::Object);
        self.state.lock().known.push((object, api_version, result));
        true
    }
}
