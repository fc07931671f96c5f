//! [`Classifier`]: finds the flow schema and the flow of a request (`startRequest` in `flowcontrol/apf_controller.go`).

use std::sync::Arc;

use crate::flow_hash::FlowHash;
use crate::objects::FlowSchema;
use crate::schema::{Distinguisher, RequestDigest};
use crate::slab::Key;

/// A flow schema whose level exists.
#[derive(Debug)]
pub struct ActiveSchema {
    pub(crate) schema: FlowSchema,
    pub(crate) level: Key,
    pub(crate) level_name: String,
    pub(crate) level_uid: String,
    pub(crate) slot: usize,
    pub(crate) request_seats_max: u64,
    pub(crate) is_exempt: bool,
    /// The hash function for the flows of the schema; `None` if all its flows share all queues.
    pub(crate) hash: Option<FlowHash>,
}

impl ActiveSchema {
    /// The name of the flow schema.
    pub fn name(&self) -> &str {
        &self.schema.name
    }

    /// The UID of the flow schema; empty if its object does not exist (`X-Kubernetes-PF-FlowSchema-UID`).
    pub fn uid(&self) -> &str {
        &self.schema.uid
    }

    /// The name of the priority level.
    pub fn level_name(&self) -> &str {
        &self.level_name
    }

    /// The UID of the priority level; empty if its object does not exist (`X-Kubernetes-PF-PriorityLevel-UID`).
    pub fn level_uid(&self) -> &str {
        &self.level_uid
    }

    /// Whether the level has no limit.
    pub fn is_exempt(&self) -> bool {
        self.is_exempt
    }

    /// The most seats of one request in this level, or 0 if the level has no such limit.
    pub fn request_seats_max(&self) -> u64 {
        self.request_seats_max
    }

    /// The hash of the flow of a request.
    pub fn flow_hash(&self, request: &RequestDigest<'_>) -> u64 {
        let Some(hash) = &self.hash else { return 0 };
        match self.schema.distinguisher {
            None => hash.hash(&[""]),
            Some(Distinguisher::ByUser) => hash.hash(&[&request.user.username]),
            Some(Distinguisher::ByNamespace) => hash.hash(&[request.namespace]),
        }
    }
}

/// The flow schemas of a server in the order of matching. The schema `catch-all` takes the requests that no other
/// schema matches.
#[derive(Debug)]
pub struct Classifier {
    schemas: Vec<Arc<ActiveSchema>>,
    catch_all: Arc<ActiveSchema>,
}

impl Classifier {
    /// Creates a classifier. `schemas` must contain the mandatory schemas.
    pub(crate) fn new(schemas: Vec<Arc<ActiveSchema>>) -> Self {
        let catch_all = schemas.iter().find(|schema| schema.schema.name == crate::objects::CATCH_ALL);
        let catch_all = Arc::clone(catch_all.expect("the mandatory schema was added"));
        Classifier { schemas, catch_all }
    }

    /// The schemas in the order of matching.
    pub fn schemas(&self) -> impl Iterator<Item = &Arc<ActiveSchema>> {
        self.schemas.iter()
    }

    /// The schema of a request: the first that matches, by `matchingPrecedence` and then by name. A request without groups
    /// belongs to `catch-all`, as in kube-apiserver.
    pub fn classify(&self, request: &RequestDigest<'_>) -> &Arc<ActiveSchema> {
        let matches = |schema: &&Arc<ActiveSchema>| schema.schema.rules.iter().any(|rule| rule.matches(request));
        self.schemas.iter().find(matches).unwrap_or(&self.catch_all)
    }
}
