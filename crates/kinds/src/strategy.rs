//! [`Strategy`]: the rules for writes of one resource. [`before_create`] and [`before_update`] apply them in upstream's
//! order. All functions are pure: ids and times are arguments.
//!
//! ```text
//!  decode ─▶ apply_defaults ─▶ to_storage_version ─▶ prepare_for_create │ prepare_for_update ─▶ validate ─▶ store
//! ```
//!
//! Source: `RESTCreateStrategy`, `RESTUpdateStrategy` and `RESTDeleteStrategy` of
//! `apiserver/pkg/registry/rest`, `BeforeCreate` and `BeforeUpdate` there.

use std::fmt;

use listwatch_json::Value;
use listwatch_validation::names::NameRule;
use listwatch_validation::null_members::{drop_nulls, is_equal_member};
use listwatch_validation::object_meta as meta;
use listwatch_validation::{Errors, Object, metadata, metadata_mut, pod_spec};

use crate::defaults;
use crate::kind::{CreateContext, Kind, UpdateContext};
use crate::subresource::Subresource;
use crate::versions::SecondVersion;
use crate::write_scope::ResourceWrites;
use listwatch_kind_warnings::Warnings;

/// The write rules of a resource that are plain values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRules {
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether PUT without a resource version overwrites. If not, the server responds with 422.
    pub unconditional_update: bool,
    /// Whether PUT of an absent object creates it.
    pub create_on_update: bool,
    /// Whether a new object without a name gets a UUID as its name.
    pub uuid_names: bool,
    /// The rule for the names of objects.
    pub names: NameRule,
    /// Whether finalizers need a domain, as those of custom resources do.
    pub qualified_finalizers: bool,
    /// Whether members can be of free form, so that `null`, an empty list and an absent member differ.
    pub free_form: bool,
    /// Whether the server maintains `metadata.generation`: 1 on create, +1 for each change outside of the metadata and
    /// status.
    pub generation: bool,
    /// Whether changes of annotations also increment `metadata.generation`.
    pub generation_counts_annotations: bool,
    /// Whether changes of labels also increment `metadata.generation`.
    pub generation_counts_labels: bool,
    /// Whether changes of the status also increment `metadata.generation`. True for kinds without a status subresource.
    pub generation_counts_status: bool,
    /// Whether deletion has a grace period: `spec.terminationGracePeriodSeconds` of pods that are bound to a node.
    pub graceful_delete: bool,
    /// The time after which objects expire, in seconds. Only Events expire.
    pub ttl_seconds: Option<u64>,
}

/// The state of an object when its deletion begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// The kind has no cleanup before deletion. Finalizers and grace periods apply as for any object.
    Unmarked,
    /// The object has just been marked. A controller does the cleanup of the kind before the object is deleted.
    Marked,
    /// The object was already marked, and the cleanup of the kind is not complete.
    Pending,
}

/// The rules for writes of one resource. Object-safe and pure.
pub trait Strategy: fmt::Debug + Send + Sync {
    /// The rules that are plain values.
    fn rules(&self) -> WriteRules;

    /// The rules for updates. They differ from [`Strategy::rules`] in the rule for names: stored objects may have names
    /// that are invalid for new objects. For a second version, names follow the rule of the stored version.
    fn update_rules(&self) -> WriteRules {
        self.rules()
    }

    /// The fields that writes to the resource and to its subresources can change.
    fn writes(&self) -> ResourceWrites;

    /// Normalizes a decoded body and applies defaults, in the version of the request.
    ///
    /// # Errors
    /// The message of upstream's decoder.
    fn apply_defaults(&self, _object: &mut Object) -> Result<(), String> {
        Ok(())
    }

    /// Converts a body with defaults to the version that is validated and stored.
    ///
    /// # Errors
    /// The message of upstream's decoder for that version.
    fn to_storage_version(&self, _object: &mut Object) -> Result<(), String> {
        Ok(())
    }

    /// Applies defaults that depend on other fields. The field manager of the write owns them.
    fn late_defaults(&self, _object: &mut Object) {}

    /// Applies the defaults to the tree of a stored object, in the stored version. Upstream does this when it decodes the
    /// object that a write replaces, because an object of an older release may lack defaults. Also removes the `null` members
    /// that upstream's decoder drops, such as `creationTimestamp` of a template, so that they are no difference. Those of
    /// the status and of the object stay, because Go prints them.
    fn apply_stored_defaults(&self, _object: &mut Object) {}

    /// Fields of the spec that admission sets. A client that omits them does not own them.
    fn admission_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// Warnings for the client that writes an object or a subresource. `new` is valid and prepared, `old` is the object
    /// that it replaces.
    fn warnings(&self, _new: &Object, _old: Option<&Object>, _subresource: Option<&Subresource>) -> Vec<String> {
        Vec::new()
    }

    /// Warnings about a new object before [`Strategy::prepare_for_create`] changes it.
    fn create_warnings(&self, _object: &Object) -> Vec<String> {
        Vec::new()
    }

    /// Prepares a new object in the stored version (`PrepareForCreate`).
    fn prepare_for_create(&self, _object: &mut Object, _context: CreateContext<'_>) {}

    /// Validates a new object. Implementations may change the object while they run and restore it at the end.
    fn validate(&self, object: &mut Object, errors: &mut Errors);

    /// Prepares a changed object in the stored version (`PrepareForUpdate`). Fields that the write cannot change have
    /// their old values already.
    fn prepare_for_update(&self, _new: &mut Object, _old: &Object, _context: UpdateContext<'_>) {}

    /// Validates a changed object. `is_unchanged`: the write does not increment `metadata.generation`. Implementations
    /// may change the object while they run and restore it at the end.
    fn validate_update(
        &self,
        new: &mut Object,
        old: &Object,
        context: UpdateContext<'_>,
        is_unchanged: bool,
        errors: &mut Errors,
    );

    /// Begins the deletion of an object at `now` (RFC 3339).
    fn begin_deletion(&self, _object: &mut Object, _now: &str) -> Deletion {
        Deletion::Unmarked
    }

    /// Whether the object stays in the store even if it has no finalizers and no grace period.
    fn holds_deletion(&self, _object: &Object) -> bool {
        false
    }
}

/// Turns a body with defaults into a new object for the store, and validates it (`rest.BeforeCreate`).
pub fn before_create(strategy: &dyn Strategy, object: &mut Object, context: CreateContext<'_>) -> Errors {
    let rules = strategy.rules();
    meta::begin(metadata_mut(object), context.uid.to_owned(), context.now.to_owned());
    if rules.generation {
        meta::begin_generation(metadata_mut(object));
    }
    strategy.prepare_for_create(object, context);
    let mut errors = Errors::default();
    meta::validate(metadata(object), meta_rules(rules), &mut errors);
    strategy.validate(object, &mut errors);
    order_metadata(object);
    errors
}

/// Turns a body with defaults into the new state of `old`, and validates it (`rest.BeforeUpdate`). Both objects are in
/// the stored version.
pub fn before_update(strategy: &dyn Strategy, new: &mut Object, old: &Object, context: UpdateContext<'_>) -> Errors {
    let rules = strategy.update_rules();
    strategy.writes().reset_unwritable_fields(context.subresource, new, old);
    strategy.prepare_for_update(new, old, context);
    meta::carry_over(metadata_mut(new), metadata(old));
    let is_unchanged =
        has_same_fields(rules, new, old) && (context.subresource.is_some() || has_same_metadata(rules, new, old));
    if rules.generation && !is_unchanged {
        meta::raise_generation(metadata_mut(new));
    }
    let mut errors = Errors::default();
    meta::validate(metadata(new), meta_rules(rules), &mut errors);
    meta::validate_update(metadata(new), metadata(old), &mut errors);
    strategy.validate_update(new, old, context, is_unchanged, &mut errors);
    order_metadata(new);
    errors
}

/// Whether this update completes the deletion of the object: it removes the last finalizer, and no grace period runs.
pub fn completes_deletion(strategy: &dyn Strategy, new: &Object, old: &Object) -> bool {
    let (new_meta, old_meta) = (metadata(new), metadata(old));
    let grace = old_meta.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    meta::is_set(old_meta, "deletionTimestamp")
        && grace == 0
        && meta::finalizers(new_meta).is_empty()
        && !strategy.holds_deletion(new)
}

fn meta_rules(rules: WriteRules) -> meta::Rules {
    meta::Rules { namespaced: rules.namespaced, names: rules.names, custom: rules.qualified_finalizers }
}

fn order_metadata(object: &mut Object) {
    let metadata = metadata_mut(object);
    *metadata = meta::canonical(std::mem::take(metadata));
}

/// Whether an update leaves the annotations and labels unchanged that `metadata.generation` counts.
fn has_same_metadata(rules: WriteRules, new: &Object, old: &Object) -> bool {
    fn texts<'a>(object: &'a Object, name: &str) -> Option<&'a Object> {
        metadata(object).get(name)?.as_object().filter(|all| !all.is_empty())
    }
    let is_same = |name: &str| texts(new, name) == texts(old, name);
    (!rules.generation_counts_annotations || is_same("annotations"))
        && (!rules.generation_counts_labels || is_same("labels"))
}

/// Whether an update leaves all fields outside of the metadata unchanged that `metadata.generation` counts.
fn has_same_fields(rules: WriteRules, new: &Object, old: &Object) -> bool {
    let counted = |name: &str| match name {
        "kind" | "apiVersion" | "metadata" => false,
        "status" => rules.generation_counts_status,
        _ => true,
    };
    let is_same = |name: &str| {
        let (new, old) = (new.get(name), old.get(name));
        new == old || !rules.free_form && is_equal_member(name, new, old)
    };
    new.keys().chain(old.keys()).filter(|name| counted(name)).all(|name| is_same(name))
}

impl Strategy for Kind {
    fn rules(&self) -> WriteRules {
        WriteRules {
            namespaced: self.namespaced,
            unconditional_update: self.unconditional_update,
            create_on_update: self.create_on_update,
            uuid_names: self.uuid_names,
            names: self.names,
            qualified_finalizers: false,
            free_form: self.keeps_nulls,
            generation: self.generation,
            generation_counts_annotations: self.generation_counts_annotations,
            generation_counts_labels: self.generation_counts_labels,
            generation_counts_status: false,
            graceful_delete: self.graceful_delete,
            ttl_seconds: self.ttl_seconds,
        }
    }

    fn update_rules(&self) -> WriteRules {
        WriteRules { names: self.update_names.unwrap_or(self.names), ..Strategy::rules(self) }
    }

    fn writes(&self) -> ResourceWrites {
        ResourceWrites {
            has_status: self.has_subresource("status"),
            keeps_spec: self.keeps_spec,
            status: self.status_write,
        }
    }

    fn apply_defaults(&self, object: &mut Object) -> Result<(), String> {
        if !self.keeps_nulls {
            drop_nulls(object);
        }
        (self.normalize)(object)?;
        defaults::apply(self.defaults, object);
        Ok(())
    }

    fn late_defaults(&self, object: &mut Object) {
        (self.late_defaults)(object);
    }

    fn apply_stored_defaults(&self, object: &mut Object) {
        for (_, value) in object.iter_mut().filter(|(name, _)| !self.keeps_nulls && *name != "status") {
            if let Value::Object(members) = value {
                drop_nulls(members);
            }
        }
        defaults::apply(self.defaults, object);
        (self.late_defaults)(object);
    }

    fn admission_fields(&self) -> &'static [&'static str] {
        self.admission_fields
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, subresource: Option<&Subresource>) -> Vec<String> {
        let mut warnings = Warnings::default();
        match subresource {
            // Upstream writes a scale with the strategy of the object.
            None | Some(Subresource::Scale { .. }) => (self.warnings)(new, old, &mut warnings),
            Some(Subresource::Status) => (self.status_warnings)(new, &mut warnings),
            Some(_) => {}
        }
        warnings.into()
    }

    fn create_warnings(&self, object: &Object) -> Vec<String> {
        (self.create_warnings)(object)
    }

    fn prepare_for_create(&self, object: &mut Object, context: CreateContext<'_>) {
        if self.has_subresource("status")
            && let Some(status) = (self.initial_status)()
        {
            object.shift_remove("status");
            object.insert("status", status);
        }
        drop_disabled_pod_fields(self.pod_spec, object, None);
        (self.prepare_for_create)(object, context);
    }

    fn validate(&self, object: &mut Object, errors: &mut Errors) {
        (self.validate)(object, None, errors);
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object, context: UpdateContext<'_>) {
        if context.subresource != Some(&Subresource::Status) {
            drop_disabled_pod_fields(self.pod_spec, new, Some(old));
        }
        (self.prepare_for_update)(new, old, context);
    }

    fn validate_update(
        &self,
        new: &mut Object,
        old: &Object,
        context: UpdateContext<'_>,
        is_unchanged: bool,
        errors: &mut Errors,
    ) {
        let subresource = context.subresource;
        let writes_spec = matches!(subresource, None | Some(Subresource::EphemeralContainers | Subresource::Resize));
        // An update that only removes finalizers of a deleted object is allowed even if the object is invalid.
        if writes_spec && !(is_unchanged && meta::is_set(metadata(old), "deletionTimestamp")) {
            (self.validate)(new, Some(old), errors);
        }
        if subresource.is_none() {
            (self.validate_update)(new, old, errors);
        }
        if subresource == Some(&Subresource::Status) {
            (self.validate_status)(new, Some(old), errors);
        }
        (self.validate_transition)(new, old, context, errors);
    }

    fn begin_deletion(&self, object: &mut Object, now: &str) -> Deletion {
        (self.begin_deletion)(object, now)
    }

    fn holds_deletion(&self, object: &Object) -> bool {
        (self.holds_deletion)(object)
    }
}

/// Removes the fields of disabled features from the pod spec at `path`.
fn drop_disabled_pod_fields(path: &[&str], new: &mut Object, old: Option<&Object>) {
    let Some((first, path)) = path.split_first() else { return };
    let old = old.and_then(|old| path.iter().try_fold(old.get(first)?, |value, name| value.get(name))?.as_object());
    let new = new.get_mut(first).and_then(|new| path.iter().try_fold(new, |value, name| value.get_mut(name)));
    if let Some(Value::Object(spec)) = new {
        pod_spec::drop_disabled_fields(spec, old);
    }
}

/// The strategy of the second version of a kind: its own defaults and conversion, and the rules of the stored version.
#[derive(Debug, Clone, Copy)]
pub struct SecondVersionStrategy {
    /// The second version.
    pub version: &'static SecondVersion,
    /// The kind in the stored version.
    pub stored: &'static Kind,
}

impl Strategy for SecondVersionStrategy {
    fn rules(&self) -> WriteRules {
        WriteRules { names: self.version.names, ..self.stored.rules() }
    }

    fn update_rules(&self) -> WriteRules {
        self.stored.update_rules()
    }

    fn writes(&self) -> ResourceWrites {
        Strategy::writes(self.stored)
    }

    fn apply_defaults(&self, object: &mut Object) -> Result<(), String> {
        drop_nulls(object);
        (self.version.apply_defaults)(object);
        Ok(())
    }

    fn to_storage_version(&self, object: &mut Object) -> Result<(), String> {
        *object = self.version.to_storage_version(std::mem::take(object));
        self.stored.apply_defaults(object)
    }

    fn late_defaults(&self, object: &mut Object) {
        (self.stored.late_defaults)(object);
    }

    fn apply_stored_defaults(&self, object: &mut Object) {
        self.stored.apply_stored_defaults(object);
    }

    fn admission_fields(&self) -> &'static [&'static str] {
        self.stored.admission_fields
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, subresource: Option<&Subresource>) -> Vec<String> {
        Strategy::warnings(self.stored, new, old, subresource)
    }

    fn create_warnings(&self, object: &Object) -> Vec<String> {
        Strategy::create_warnings(self.stored, object)
    }

    fn prepare_for_create(&self, object: &mut Object, context: CreateContext<'_>) {
        Strategy::prepare_for_create(self.stored, object, context);
    }

    fn validate(&self, object: &mut Object, errors: &mut Errors) {
        Strategy::validate(self.stored, object, errors);
        (self.version.validate)(object, None, errors);
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object, context: UpdateContext<'_>) {
        Strategy::prepare_for_update(self.stored, new, old, context);
    }

    fn validate_update(
        &self,
        new: &mut Object,
        old: &Object,
        context: UpdateContext<'_>,
        is_unchanged: bool,
        errors: &mut Errors,
    ) {
        Strategy::validate_update(self.stored, new, old, context, is_unchanged, errors);
        if context.subresource.is_none() {
            (self.version.validate)(new, Some(old), errors);
        }
    }

    fn begin_deletion(&self, object: &mut Object, now: &str) -> Deletion {
        (self.stored.begin_deletion)(object, now)
    }

    fn holds_deletion(&self, object: &Object) -> bool {
        (self.stored.holds_deletion)(object)
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;
    use listwatch_meta::UserInfo;
    use time::OffsetDateTime;

    use super::*;
    use crate::testing::map;
    use crate::versions::SECOND_VERSIONS;

    const NO_ERRORS: [&str; 0] = [];

    fn kind(group: &str, kind: &str) -> &'static Kind {
        crate::find(group, kind).expect("a built-in kind")
    }

    /// Creates a stored PodDisruptionBudget with these members in its metadata, and with this spec.
    fn budget(members: Value, spec: Value) -> Object {
        let mut object = map(json!({"metadata": {"name": "b", "namespace": "n", "uid": "u", "resourceVersion": "1",
            "generation": 1, "creationTimestamp": "2024-01-01T00:00:00Z"}, "spec": spec, "status": {}}));
        metadata_mut(&mut object).extend(map(members));
        object
    }

    fn texts(errors: &Errors) -> Vec<String> {
        errors.iter().map(listwatch_meta::FieldError::to_string).collect()
    }

    /// Updates a PodDisruptionBudget and returns the errors.
    fn update(new: &mut Object, old: &Object, subresource: Option<&Subresource>) -> Vec<String> {
        let context = UpdateContext { subresource, now: OffsetDateTime::UNIX_EPOCH };
        texts(&before_update(kind("policy", "PodDisruptionBudget"), new, old, context))
    }

    #[test]
    fn create_sets_uid_time_generation_and_initial_status() {
        let mut object = budget(json!({"uid": "client", "generation": 7}), json!({"minAvailable": 1}));
        object.insert("status", json!({"currentHealthy": 5}));
        let context = CreateContext { uid: "server", now: "2024-05-01T00:00:00Z", user: UserInfo::admin() };
        let kind = kind("policy", "PodDisruptionBudget");
        assert_eq!(texts(&before_create(kind, &mut object, context)), NO_ERRORS);
        let metadata = metadata(&object);
        let set = ["uid", "creationTimestamp", "generation"].map(|name| &metadata[name]);
        assert_eq!(set, [&json!("server"), &json!("2024-05-01T00:00:00Z"), &json!(1)]);
        assert_eq!(Some(&object["status"]), (kind.initial_status)().as_ref());
    }

    #[test]
    fn update_increments_generation_only_for_a_changed_spec() {
        let old = budget(json!({}), json!({"minAvailable": 1}));
        for (members, available, generation) in [
            (json!({}), 1, 1),
            (json!({"labels": {"a": "b"}}), 1, 1),
            (json!({"annotations": {"a": "b"}}), 1, 1),
            (json!({"generation": 9}), 1, 1),
            (json!({}), 2, 2),
        ] {
            let mut new = budget(members.clone(), json!({ "minAvailable": available }));
            assert_eq!(update(&mut new, &old, None), NO_ERRORS);
            assert_eq!(new["metadata"]["generation"], generation, "{members} {available}");
        }
    }

    /// Creates an object and returns it with its errors.
    fn create(kind: &Kind, object: Value) -> (Object, Vec<String>) {
        let mut object = map(object);
        let context = CreateContext { uid: "u", now: "2024-05-01T00:00:00Z", user: UserInfo::admin() };
        let errors = before_create(kind, &mut object, context);
        (object, texts(&errors))
    }

    /// Updates a valid object and returns the result.
    fn changed(kind: &Kind, old: &Object, change: impl FnOnce(&mut Object)) -> Object {
        let mut new = old.clone();
        change(&mut new);
        let context = UpdateContext { subresource: None, now: OffsetDateTime::UNIX_EPOCH };
        assert_eq!(texts(&before_update(kind, &mut new, old, context)), NO_ERRORS);
        new
    }

    #[test]
    fn generation_counts_what_the_strategy_of_the_kind_counts() {
        let generation = |object: &Object| metadata(object).get("generation").and_then(Value::as_i64);
        let labels = |object: &mut Object| drop(metadata_mut(object).insert("labels", json!({"a": "b"})));
        let annotations = |object: &mut Object| drop(metadata_mut(object).insert("annotations", json!({"a": "b"})));
        let slice = kind("discovery.k8s.io", "EndpointSlice");
        let (old, _) = create(
            slice,
            json!({"metadata": {"name": "s", "namespace": "n"}, "addressType": "IPv4", "endpoints": [], "ports": []}),
        );
        assert_eq!(generation(&old), Some(1));
        assert_eq!(generation(&changed(slice, &old, labels)), Some(2), "labels of an EndpointSlice");
        assert_eq!(generation(&changed(slice, &old, annotations)), Some(1), "annotations of an EndpointSlice");
        let null = |object: &mut Object| object["ports"] = Value::Null;
        assert_eq!(generation(&changed(slice, &old, null)), Some(1), "null instead of an empty list");

        let driver = kind("storage.k8s.io", "CSIDriver");
        let spec = json!({"attachRequired": true, "podInfoOnMount": false, "storageCapacity": false,
            "fsGroupPolicy": "File", "volumeLifecycleModes": ["Persistent"], "seLinuxMount": false});
        let (old, _) = create(driver, json!({"metadata": {"name": "d"}, "spec": spec}));
        assert_eq!(generation(&old), None);
        let capacity = |object: &mut Object| object["spec"]["storageCapacity"] = json!(true);
        let new = changed(driver, &old, capacity);
        assert_eq!(generation(&new), Some(1), "spec of a CSIDriver");
        assert_eq!(generation(&changed(driver, &new, labels)), Some(1), "labels of a CSIDriver");

        let class = kind("scheduling.k8s.io", "PriorityClass");
        let (old, _) = create(
            class,
            json!({"metadata": {"name": "c"}, "value": 5, "preemptionPolicy": "Never", "description": "a"}),
        );
        assert_eq!(generation(&old), Some(1));
        let description = |object: &mut Object| object["description"] = json!("b");
        assert_eq!(generation(&changed(class, &old, description)), Some(1), "description of a PriorityClass");
    }

    #[test]
    fn label_patch_of_a_stored_object_with_nulls_keeps_its_generations() {
        for name in ["Deployment", "DaemonSet"] {
            let kind = kind("apps", name);
            let stored = map(json!({"metadata": {"name": "w", "namespace": "n", "uid": "u", "generation": 3,
                "creationTimestamp": "2019-01-01T00:00:00Z",
                "annotations": {"deprecated.daemonset.template.generation": "3"}},
                "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
                    "metadata": {"creationTimestamp": null, "labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "image": "i:1", "resources": {}}]}}}, "status": {}}));
            let mut old = stored.clone();
            kind.apply_stored_defaults(&mut old);
            let mut new = stored;
            metadata_mut(&mut new).insert("labels", json!({"a": "b"}));
            Strategy::apply_defaults(kind, &mut new).unwrap();
            let context = UpdateContext { subresource: None, now: OffsetDateTime::UNIX_EPOCH };
            assert_eq!(texts(&before_update(kind, &mut new, &old, context)), NO_ERRORS, "{name}");
            assert_eq!(metadata(&new)["generation"], 3, "{name}");
            assert_eq!(metadata(&new)["annotations"], metadata(&old)["annotations"], "{name}");
        }
    }

    #[test]
    fn stateful_set_with_dots_in_its_name_cannot_be_created_but_updated() {
        let kind = kind("apps", "StatefulSet");
        let set = |meta: Value| {
            let mut set = map(json!({"metadata": meta, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
                "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}));
            metadata_mut(&mut set).insert("namespace", json!("n"));
            kind.apply_defaults(&mut set).unwrap();
            set
        };
        for (meta, errors) in [
            (json!({"name": "a-b"}), vec![]),
            (json!({"name": "a.b"}), vec!["metadata.name: Invalid value: \"a.b\": must not contain dots"]),
            (
                json!({"name": "a", "generateName": "a.b-"}),
                vec!["metadata.generateName: Invalid value: \"a.b-\": must not contain dots"],
            ),
        ] {
            assert_eq!(create(kind, Value::Object(set(meta))).1, errors);
        }
        let old = set(json!({"name": "a.b", "uid": "u"}));
        changed(kind, &old, |set| set["spec"]["replicas"] = json!(2));
    }

    #[test]
    fn status_update_keeps_spec_and_generation() {
        let old = budget(json!({}), json!({"minAvailable": 1}));
        let mut new = budget(json!({}), json!({"minAvailable": 2}));
        new.insert("status", json!({"currentHealthy": 5}));
        assert_eq!(update(&mut new, &old, Some(&Subresource::Status)), NO_ERRORS);
        assert_eq!((&new["spec"], &new["metadata"]["generation"]), (&json!({"minAvailable": 1}), &json!(1)));
        assert_eq!(new["status"], json!({"currentHealthy": 5}));
    }

    #[test]
    fn update_of_invalid_deleted_object_can_only_remove_finalizers() {
        let deleted =
            |finalizers: Value| json!({"deletionTimestamp": "2024-01-02T00:00:00Z", "finalizers": finalizers});
        let invalid = |available: i64| json!({"minAvailable": available, "maxUnavailable": 1});
        let old = budget(deleted(json!(["example.com/x"])), invalid(1));
        assert_eq!(update(&mut budget(deleted(json!([])), invalid(1)), &old, None), NO_ERRORS);
        let errors = update(&mut budget(deleted(json!([])), invalid(2)), &old, None);
        assert!(errors[0].ends_with("minAvailable and maxUnavailable cannot be both set"), "{errors:?}");
        let old = budget(json!({"finalizers": ["example.com/x"]}), invalid(1));
        assert_eq!(update(&mut budget(json!({"finalizers": []}), invalid(1)), &old, None).len(), 1, "not deleted");
    }

    #[test]
    fn deletion_completes_only_without_finalizers_and_grace_period() {
        let object = |members: Value| budget(members, json!({"finalizers": ["kubernetes"]}));
        let time = "2024-01-02T00:00:00Z";
        for (group, name, old, new, expected) in [
            ("policy", "PodDisruptionBudget", json!({"deletionTimestamp": time}), json!({}), true),
            ("policy", "PodDisruptionBudget", json!({}), json!({}), false),
            (
                "policy",
                "PodDisruptionBudget",
                json!({"deletionTimestamp": time}),
                json!({"finalizers": ["a/b"]}),
                false,
            ),
            ("", "Pod", json!({"deletionTimestamp": time, "deletionGracePeriodSeconds": 30}), json!({}), false),
            ("", "Pod", json!({"deletionTimestamp": time, "deletionGracePeriodSeconds": 0}), json!({}), true),
            ("", "Namespace", json!({"deletionTimestamp": time}), json!({}), false),
        ] {
            let (new, old) = (object(new), object(old));
            assert_eq!(completes_deletion(kind(group, name), &new, &old), expected, "{name} {old:?}");
        }
    }

    #[test]
    fn object_written_in_second_version_is_stored_in_storage_version() {
        let strategy = SecondVersionStrategy { version: SECOND_VERSIONS[0], stored: kind("", "Event") };
        let mut event = map(json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "hello"}));
        strategy.apply_defaults(&mut event).unwrap();
        strategy.to_storage_version(&mut event).unwrap();
        assert_eq!((&event["apiVersion"], &event["message"]), (&json!("v1"), &json!("hello")));
    }
}
