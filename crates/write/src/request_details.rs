//! [`Details`]: provides the options of a write and the object in any served version, for admission plugins.
//!
//! Plugins receive an object in the version in which the pipeline validates the object: the stored version for a
//! built-in kind, the version of the request for a custom resource. Webhooks receive the same version and form as
//! clients.

use std::borrow::Cow;
use std::time::Instant;

use listwatch_admission::{
    AdmissionFuture, AdmissionRecorder, KindName, Operation, PatchError, RequestDetails, ResourceName,
};
use listwatch_apply::Typing;
use listwatch_json::{Map, Value, json};
use listwatch_kinds::versions::SECOND_VERSIONS;
use listwatch_meta::{Revision, Status};
use listwatch_registry::{Registry, Resource};
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};
use listwatch_wire::query::Query;

use super::decode::{self, NormalizeError};
use super::expected::Expected;
use super::json_patch;
use super::memory::{DOCUMENT_BYTES_MAX, bytes_of};
use super::options::DeleteOptions;
use super::ownership;
use super::patch::JSON_PATCH_OPERATIONS_MAX;
use super::store::MANAGED_FIELDS;

/// The group and version of the options in an AdmissionReview.
const META_VERSION: &str = "meta.k8s.io/v1";

/// The details of one write, for admission plugins.
pub(super) struct Details<'a> {
    pub(super) registry: &'a Registry,
    pub(super) resource: &'a Resource,
    pub(super) operation: Operation,
    /// The kind of the body of a subresource; `None` if the body has the kind of the resource.
    pub(super) body: Option<Expected<'a>>,
    /// The query of the request; `None` for the server's own writes.
    pub(super) query: Option<&'a Query<'a>>,
    pub(super) dry_run: bool,
    /// The verb of the request; empty for the server's own writes.
    pub(super) verb: &'a str,
    /// The name in the path; empty for a POST.
    pub(super) path_name: &'a str,
    /// The options of a deletion.
    pub(super) deletion: Option<&'a DeleteOptions>,
    pub(super) deadline: Option<Instant>,
    /// The revision of the old object.
    pub(super) revision: Option<Revision>,
    pub(super) recorder: &'a AdmissionRecorder,
}

impl<'a> Details<'a> {
    fn name_of(resource: &Resource) -> ResourceName<'_> {
        let Resource { group, version, plural, kind, .. } = resource;
        ResourceName { group, version, resource: plural, kind: KindName { group, version, kind } }
    }

    /// Returns the served resource with this name.
    fn equivalent(&self, name: &ResourceName<'_>) -> Result<&'a Resource, Status> {
        let found = self.registry.find(name.group, name.version, name.resource);
        found.map(|found| &**found).ok_or_else(|| Status::internal("the version is not served"))
    }

    fn is_requested(&self, name: &ResourceName<'_>) -> bool {
        (name.group, name.version, name.resource)
            == (&*self.resource.group, &*self.resource.version, &*self.resource.plural)
    }

    /// Converts an object of the pipeline to another version. The input is in the stored version for a built-in kind,
    /// and in the version of the request for a custom resource.
    async fn converted(&self, object: &Map, to: &ResourceName<'_>) -> Result<Map, Status> {
        if self.body.is_some() {
            return Ok(object.clone());
        }
        if self.is_requested(to) {
            return Ok(match &self.resource.conversion {
                Some(_) => self.resource.read_stored(object, self.deadline).await?.into_owned(),
                None => object.clone(),
            });
        }
        let other = self.equivalent(to)?;
        if self.resource.converts_by_webhook() {
            let converted = self.resource.convert_to(object.clone(), &other.api_version(), self.deadline).await;
            return converted.map_err(Status::unknown);
        }
        let mut stored = Cow::Borrowed(object);
        if self.resource.custom {
            self.resource.to_stored(stored.to_mut(), self.deadline).await?;
        }
        Ok(other.read_stored(&stored, self.deadline).await?.into_owned())
    }

    /// Converts an object to a version, in the form that clients receive.
    async fn shown(&self, object: &Map, to: &ResourceName<'_>) -> Result<Map, Status> {
        let mut shown = self.converted(object, to).await?;
        ownership::expand_managed_fields(&mut shown);
        if let Some(revision) = self.revision
            && shown.contains_key("metadata")
            && meta::text(metadata(&shown), "resourceVersion").is_empty()
        {
            let version = Value::from(revision.to_string());
            metadata_mut(&mut shown).insert("resourceVersion", version);
        }
        Ok(shown)
    }

    /// Converts the managed fields to the text form of the pipeline. Invalid managed fields are replaced by the managed
    /// fields of `original` (`fieldmanager/admission.go`).
    fn restore_managed_fields(&self, object: &mut Map, original: &Map) {
        let before = metadata(original).get(MANAGED_FIELDS);
        let Some(after) = metadata(object).get(MANAGED_FIELDS) else { return };
        match ownership::decode_managed_fields(after) {
            Ok(mut managed) => {
                ownership::set_managed_fields(object, &mut managed);
            }
            Err(why) => {
                self.recorder.warn(format!(
                    ".metadata.managedFields was in an invalid state after admission; this could be caused by an \
                     outdated mutating admission controller; please fix your requests: {why}"
                ));
                match before {
                    Some(before) => metadata_mut(object).insert(MANAGED_FIELDS, before.clone()),
                    None => metadata_mut(object).shift_remove(MANAGED_FIELDS),
                };
            }
        }
    }

    async fn restored(&self, mut object: Map, of: &ResourceName<'_>, original: &Map) -> Result<Map, Status> {
        if self.body.is_some() {
            return Ok(object);
        }
        let version = if self.is_requested(of) { self.resource } else { self.equivalent(of)? };
        version.strategy.apply_defaults(&mut object).map_err(Status::internal)?;
        version.strategy.late_defaults(&mut object);
        version.strategy.to_storage_version(&mut object).map_err(Status::internal)?;
        if version.custom && !self.is_requested(of) {
            if version.converts_by_webhook() {
                let converted = version.convert_to(object, &self.resource.api_version(), self.deadline).await;
                object = converted.map_err(Status::unknown)?;
            } else {
                version.to_stored(&mut object, self.deadline).await?;
                object = self.resource.read_stored(&object, self.deadline).await?.into_owned();
            }
        }
        self.restore_managed_fields(&mut object, original);
        Ok(object)
    }

    /// Returns the options of a deletion as `DeleteOptions` of `meta.k8s.io/v1`.
    fn delete_options(options: &DeleteOptions) -> Map {
        let mut written = Map::new();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                written.insert(name, value);
            }
        };
        set("kind", Some(json!("DeleteOptions")));
        set("apiVersion", Some(json!(META_VERSION)));
        set("gracePeriodSeconds", options.grace_period_seconds.map(Value::from));
        let mut preconditions = Map::new();
        for (name, value) in [("uid", &options.uid), ("resourceVersion", &options.resource_version)] {
            if let Some(value) = value {
                preconditions.insert(name, json!(value));
            }
        }
        set("preconditions", (!preconditions.is_empty()).then_some(Value::Object(preconditions)));
        set("orphanDependents", options.orphan_dependents.map(Value::Bool));
        let policy = options.propagation.filter(|_| options.orphan_dependents.is_none());
        set("propagationPolicy", policy.map(|policy| json!(policy.as_str())));
        set("dryRun", options.dry_run.then(|| json!(["All"])));
        written
    }
}

/// Returns the error for an operation that cannot be applied, with the text of upstream's library
/// (`evanphx/json-patch`).
fn not_applicable(operation: &Value) -> PatchError {
    let text = |name: &str| operation.get(name).and_then(Value::as_str).unwrap_or_default();
    match text("op") {
        "test" => PatchError::TestFailed(format!("testing path {} failed: test failed", text("path"))),
        op => PatchError::Failed(format!(
            "jsonpatch {op} operation does not apply: doc is missing path: {:?}: missing value",
            text("path")
        )),
    }
}

impl RequestDetails for Details<'_> {
    fn requested(&self) -> ResourceName<'_> {
        let name = Details::name_of(self.resource);
        match &self.body {
            Some(Expected { group, version, kind, .. }) => {
                ResourceName { kind: KindName { group, version, kind }, ..name }
            }
            None => name,
        }
    }

    fn equivalents(&self) -> Vec<ResourceName<'_>> {
        let Resource { group, version, plural, .. } = self.resource;
        let mut others: Vec<&Resource> = Vec::new();
        let mut add = |(group, version, plural): (&str, &str, &str)| {
            others.extend(self.registry.find(group, version, plural).map(|found| &**found));
        };
        match &self.resource.form {
            Some(form) => form.kind().versions().iter().for_each(|version| add((group, version, plural))),
            None => {
                for second in SECOND_VERSIONS {
                    // Both versions have the same plural.
                    let (stored, shown) = (second.stored, (second.group, second.version, second.stored.2));
                    if [stored, shown].contains(&(&**group, &**version, &**plural)) {
                        add(stored);
                        add(shown);
                    }
                }
            }
        }
        let kind = self.requested().kind;
        let names = others.into_iter().map(|other| match self.body {
            Some(_) => ResourceName { kind, ..Details::name_of(other) },
            None => Details::name_of(other),
        });
        names.filter(|name| !self.is_requested(name)).collect()
    }

    fn options(&self) -> Option<Map> {
        let kind = match self.operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => {
                return Some(Details::delete_options(self.deletion.unwrap_or(&DeleteOptions::default())));
            }
            _ => return None,
        };
        let mut options = Map::new();
        options.insert("kind", json!(kind));
        options.insert("apiVersion", json!(META_VERSION));
        if self.dry_run {
            options.insert("dryRun", json!(["All"]));
        }
        for name in ["fieldManager", "fieldValidation"] {
            if let Some(value) = self.query.and_then(|query| query.get(name)).filter(|value| !value.is_empty()) {
                options.insert(name, json!(value));
            }
        }
        Some(options)
    }

    fn verb(&self) -> &str {
        self.verb
    }

    fn path_name(&self) -> &str {
        self.path_name
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn show<'a>(&'a self, object: &'a Map, to: ResourceName<'a>) -> AdmissionFuture<'a, Map> {
        Box::pin(async move { self.shown(object, &to).await })
    }

    fn show_old<'a>(&'a self, old_object: &'a Map, to: ResourceName<'a>) -> AdmissionFuture<'a, Map> {
        Box::pin(async move { self.shown(old_object, &to).await })
    }

    fn patch(&self, shown: &mut Map, operations: Vec<Value>) -> Result<(), PatchError> {
        if operations.len() > JSON_PATCH_OPERATIONS_MAX {
            let why = format!("the patch has more than {JSON_PATCH_OPERATIONS_MAX} operations");
            return Err(PatchError::Failed(why));
        }
        let errors: Vec<PatchError> = operations.iter().map(not_applicable).collect();
        let too_large = || PatchError::Failed("the patched object is too large".to_owned());
        let mut document = Value::Object(std::mem::take(shown));
        json_patch::apply_numbered(&mut document, operations)
            .map_err(|position| errors.get(position).cloned().unwrap_or_else(too_large))?;
        if bytes_of(&document) > DOCUMENT_BYTES_MAX {
            return Err(too_large());
        }
        match document {
            Value::Object(patched) => {
                *shown = patched;
                Ok(())
            }
            _ => Err(PatchError::Failed("the patched object is not an object".to_owned())),
        }
    }

    fn merge(&self, shown: &Map, configuration: Map, of: ResourceName<'_>) -> Result<Map, String> {
        let typing = match &self.body {
            Some(Expected { group, version, kind, .. }) => {
                let api_version = if group.is_empty() { (*version).to_owned() } else { format!("{group}/{version}") };
                Cow::Owned(Typing::of_built_in(&api_version, kind).unwrap_or_else(Typing::deduced))
            }
            None => {
                let resource = self.equivalent(&of).map_err(|status| status.message)?;
                Cow::Borrowed(ownership::kind(resource).typing())
            }
        };
        let configuration = Value::Object(configuration);
        typing
            .validate(&configuration, false)
            .map_err(|misfit| format!("failed to convert patch object to typed object: {misfit}"))?;
        let atomics = typing.atomics(&configuration);
        if !atomics.is_empty() {
            return Err(format!(
                "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
                atomics.join(", ")
            ));
        }
        let live = Value::Object(shown.clone());
        let merged =
            typing.merge(&live, &configuration).map_err(|misfit| format!("failed to merge patch: {misfit}"))?;
        match merged {
            Value::Object(merged) => Ok(merged),
            _ => Err("failed to convert typed object to object".to_owned()),
        }
    }

    fn decode(&self, patched: Map, of: ResourceName<'_>) -> Result<Map, String> {
        let expected = match &self.body {
            Some(body) => *body,
            None => Expected::of(self.equivalent(&of).map_err(|status| status.message)?),
        };
        let mut decoded = decode::ordered(patched, expected).map_err(|status| status.message)?;
        decode::normalize(&mut decoded, expected).map_err(|error| match error {
            NormalizeError::Text(why) => why,
            NormalizeError::TooLarge => "the patched object is too large".to_owned(),
        })?;
        Ok(decoded)
    }

    fn restore<'a>(&'a self, decoded: Map, of: ResourceName<'a>, original: &'a Map) -> AdmissionFuture<'a, Map> {
        Box::pin(async move { self.restored(decoded, &of, original).await })
    }
}
