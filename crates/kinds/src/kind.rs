//! [`Kind`]: the description of a built-in kind.

use std::fmt;

use listwatch_json::json;
use listwatch_meta::UserInfo;
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object, null_members};
use time::OffsetDateTime;

use crate::defaults::{self, Defaults};
use crate::strategy::Deletion;
use crate::subresource::Subresource;
use crate::write_scope::WriteScope;
use listwatch_kind_warnings::Warnings;
use listwatch_printers::{self as printers, Printer};

/// The names, rules and Table columns of a built-in kind. All functions are pure.
///
/// A kind is a `static` that starts from [`Kind::namespaced`] or [`Kind::cluster`] and overrides the fields that
/// differ.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The API group; `""` for core.
    pub group: &'static str,
    /// The version in which objects are stored.
    pub version: &'static str,
    /// The plural used in paths, e.g. `pods`.
    pub plural: &'static str,
    /// The kind, e.g. `Pod`.
    pub kind: &'static str,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether objects are stored. Reviews, bindings and component statuses are not stored.
    pub stored: bool,
    /// Short names, e.g. `po`.
    pub short_names: &'static [&'static str],
    /// Categories, e.g. `all`.
    pub categories: &'static [&'static str],
    /// The prefix of the keys of stored objects; the plural by default.
    pub storage_prefix: &'static str,
    /// Selectable fields besides `metadata.name` and `metadata.namespace`.
    pub fields: &'static [Field],
    /// The served subresources, in any order.
    pub subresources: &'static [Subresource],
    /// The rule for names; RFC 1123 subdomains by default.
    pub names: NameRule,
    /// The rule for names in updates, if older servers accepted more names. Default: the rule for names.
    pub update_names: Option<NameRule>,
    /// Whether PUT without a resource version overwrites the object. If not, the server responds with 422. Default:
    /// true.
    pub unconditional_update: bool,
    /// Whether PUT of an absent object creates it.
    pub create_on_update: bool,
    /// Whether a new object without a name gets a UUID as its name.
    pub uuid_names: bool,
    /// Whether `metadata.generation` counts changes of fields outside of the metadata and the status.
    pub generation: bool,
    /// Whether `metadata.generation` also counts changes of annotations.
    pub generation_counts_annotations: bool,
    /// Whether `metadata.generation` also counts changes of labels.
    pub generation_counts_labels: bool,
    /// Whether deletion waits for a grace period (`spec.terminationGracePeriodSeconds` of pods).
    pub graceful_delete: bool,
    /// The time after which objects expire, in seconds; `None` if they do not expire.
    pub ttl_seconds: Option<u64>,
    /// The warning in each response, for a deprecated version.
    pub deprecation: Option<&'static str>,
    /// The default values of absent fields.
    pub defaults: &'static Defaults,
    /// Applies defaults that depend on other fields. The field manager of the write owns them.
    pub late_defaults: fn(&mut Object),
    /// Texts of the JSON of a complete stored object. An object without one of them may lack a default that upstream
    /// added after the kind was stable. [`Kind::complete_stored`] then adds it. Default: none, so that reads add nothing.
    pub stored_texts: &'static [StoredText],
    /// Changes fields that objects of older releases lack or should not have, and that depend on each other
    /// (`defaultOnRead` of the storage of upstream's kind). Runs after the defaults.
    pub default_on_read: fn(&mut Object),
    /// The status of a new object, for kinds with the status subresource. `None` keeps the status that the client sent.
    pub initial_status: fn() -> Option<listwatch_json::Value>,
    /// Whether `null` members are preserved. For other kinds, `null` members are removed before defaults apply.
    pub keeps_nulls: bool,
    /// Changes a decoded body before defaults apply. The error is the message of upstream's decoder.
    pub normalize: fn(&mut Object) -> Result<(), String>,
    /// The members that lead to the pod spec in an object; empty for kinds without pods.
    pub pod_spec: &'static [&'static str],
    /// Prepares a new object after defaults apply (`PrepareForCreate`).
    pub prepare_for_create: fn(&mut Object, CreateContext<'_>),
    /// Prepares the new state of an object (`PrepareForUpdate`). Fields that the write cannot change have their old
    /// values already.
    pub prepare_for_update: fn(&mut Object, &Object, UpdateContext<'_>),
    /// Validates an object (`Validate`). The second argument is the stored object in an update. Some rules accept an
    /// invalid value that is already stored.
    pub validate: fn(&Object, Option<&Object>, &mut Errors),
    /// Validates the changes of a write of the whole object (`ValidateUpdate`). Arguments: new, old.
    pub validate_update: fn(&Object, &Object, &mut Errors),
    /// Validates a write of the status subresource. Arguments: new, old.
    pub validate_status: fn(&Object, Option<&Object>, &mut Errors),
    /// Validates the changes of a write of the object or of any subresource. Arguments: new, old.
    pub validate_transition: fn(&Object, &Object, UpdateContext<'_>, &mut Errors),
    /// Adds the warnings for a client that writes an object or its scale (`WarningsOnCreate`, `WarningsOnUpdate`). The
    /// second argument is the old object in an update.
    pub warnings: fn(&Object, Option<&Object>, &mut Warnings),
    /// Warnings about a new object before [`Kind::prepare_for_create`] changes it.
    pub create_warnings: fn(&Object) -> Vec<String>,
    /// Adds the warnings for a client that writes the status (`WarningsOnUpdate` of the status strategy).
    pub status_warnings: fn(&Object, &mut Warnings),
    /// Fields of the spec that admission sets. A client that omits them does not own them.
    pub admission_fields: &'static [&'static str],
    /// Marks an object for deletion, for kinds with cleanup before the deletion. The second argument is the time (RFC
    /// 3339).
    pub begin_deletion: fn(&mut Object, &str) -> Deletion,
    /// Whether the object stays in the store even if it has no finalizers and no grace period.
    pub holds_deletion: fn(&Object) -> bool,
    /// The warning for a deletion without a propagation policy. `None` for no warning.
    pub delete_warning: Option<&'static str>,
    /// Whether deletion orphans dependents by default.
    pub orphans_dependents: bool,
    /// Whether a deletion returns the last state of the object instead of a Status (`ReturnDeletedObject`).
    pub returns_deleted: bool,
    /// Whether the spec never changes after creation.
    pub keeps_spec: bool,
    /// The fields that a write of the status subresource changes.
    pub status_write: WriteScope,
    /// The columns and cells of Tables.
    pub printer: &'static Printer,
    /// The members, besides metadata, of an empty object of this kind as Go prints it. Bookmarks have such an object.
    pub zero_members: &'static str,
    /// The part of the object that this server stores without enforcing it.
    pub unenforced: Option<Unenforced>,
}

/// A selectable field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The label in field selectors.
    pub label: &'static str,
    /// The dotted path of the value.
    pub path: &'static str,
    /// The value of objects without the field.
    pub default: &'static str,
    /// Another label of the field in field selectors.
    pub alias: Option<&'static str>,
    /// The label of the field whose value is used if this field is empty.
    pub or_field: Option<&'static str>,
    /// Whether the watch cache has an index by this field.
    pub indexed: bool,
}

impl Field {
    /// Creates a field whose label equals its path, with the default `""`.
    pub const fn new(path: &'static str) -> Self {
        Field::with_default(path, "")
    }

    /// Creates a field whose label equals its path, with a default.
    pub const fn with_default(path: &'static str, default: &'static str) -> Self {
        Field { label: path, path, default, alias: None, or_field: None, indexed: false }
    }
}

/// A text in the compact JSON of complete stored objects of a kind. A text of the same form in a label or a data key also
/// counts. Reads of an object with such a label may therefore lack the default until the next write of the object.
#[derive(Debug, Clone, Copy)]
pub enum StoredText {
    /// Every object has the text.
    Always(&'static str),
    /// Every object with the first text has the second.
    With(&'static str, &'static str),
    /// Every object with the first text has it before the second text.
    Before(&'static str, &'static str),
    /// Few objects have the text. An object with it may need [`Kind::default_on_read`].
    Rare(&'static str),
}

/// A part of an object that this server stores without enforcing it. The client that writes it receives a warning.
#[derive(Debug, Clone, Copy)]
pub struct Unenforced {
    /// The part of the object that would have an effect in kube-apiserver.
    pub part: UnenforcedPart,
    /// The missing effect, as the end of the warning.
    pub consequence: &'static str,
}

/// The part of an object that is not enforced.
#[derive(Debug, Clone, Copy)]
pub enum UnenforcedPart {
    /// The whole object.
    Object,
    /// Labels whose keys have this prefix.
    Label(&'static str),
    /// This annotation, set to `true`.
    Annotation(&'static str),
}

/// The inputs of a create.
#[derive(Debug, Clone, Copy)]
pub struct CreateContext<'a> {
    /// The UID of the new object.
    pub uid: &'a str,
    /// The time of the creation, RFC 3339 in whole seconds.
    pub now: &'a str,
    /// The user who creates the object.
    pub user: &'a UserInfo,
}

/// The inputs of an update.
#[derive(Debug, Clone, Copy)]
pub struct UpdateContext<'a> {
    /// The subresource that is written; `None` for the object itself.
    pub subresource: Option<&'a Subresource>,
    /// The time of the change.
    pub now: OffsetDateTime,
}

impl Kind {
    /// Creates a kind whose objects live in namespaces.
    pub const fn namespaced(
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        kind: &'static str,
    ) -> Self {
        Kind {
            group,
            version,
            plural,
            kind,
            namespaced: true,
            stored: true,
            short_names: &[],
            categories: &[],
            storage_prefix: plural,
            fields: &[],
            subresources: &[],
            names: NameRule::Subdomain,
            update_names: None,
            unconditional_update: true,
            create_on_update: false,
            uuid_names: false,
            generation: false,
            generation_counts_annotations: false,
            generation_counts_labels: false,
            graceful_delete: false,
            ttl_seconds: None,
            deprecation: None,
            defaults: &Defaults::NONE,
            late_defaults: |_| {},
            stored_texts: &[],
            default_on_read: |_| {},
            initial_status: || Some(json!({})),
            keeps_nulls: false,
            normalize: |_| Ok(()),
            pod_spec: &[],
            prepare_for_create: |_, _| {},
            prepare_for_update: |_, _, _| {},
            validate: |_, _, _| {},
            validate_update: |_, _, _| {},
            validate_status: |_, _, _| {},
            validate_transition: |_, _, _, _| {},
            warnings: |_, _, _| {},
            create_warnings: |_| Vec::new(),
            status_warnings: |_, _| {},
            admission_fields: &[],
            begin_deletion: |_, _| Deletion::Unmarked,
            holds_deletion: |_| false,
            delete_warning: None,
            orphans_dependents: false,
            returns_deleted: false,
            keeps_spec: false,
            status_write: WriteScope::STATUS,
            printer: &printers::DEFAULT,
            zero_members: "",
            unenforced: None,
        }
    }

    /// Creates a kind whose objects are cluster-scoped.
    pub const fn cluster(group: &'static str, version: &'static str, plural: &'static str, kind: &'static str) -> Self {
        Kind { namespaced: false, ..Kind::namespaced(group, version, plural, kind) }
    }

    /// Completes an object that was read from the store, as upstream does at each read: applies all defaults, and
    /// [`Kind::default_on_read`]. Members that are `null` count as absent and are removed, except for kinds that keep
    /// them. Returns false if the object was complete.
    pub fn complete_stored(&self, object: &mut Object) -> bool {
        if !self.keeps_nulls {
            null_members::drop_nulls(object);
        }
        let before = object.clone();
        defaults::apply(self.defaults, object);
        (self.late_defaults)(object);
        (self.default_on_read)(object);
        // Some defaults are `null`.
        !null_members::is_equal("", object, &before)
    }

    /// Whether the kind has a subresource of this name.
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|subresource| subresource.name() == name)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kind({}/{} {})", self.group, self.version, self.kind)
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;
    use listwatch_meta::UserInfo;
    use listwatch_validation::Object;
    use time::OffsetDateTime;

    use super::{CreateContext, Kind, UpdateContext};
    use crate::testing::{map, objects_without_defaults};
    use crate::{KINDS, Strategy, Subresource};

    /// The stored kinds with their objects. A kind without defaults has an empty object.
    fn each_object(mut check: impl FnMut(&'static Kind, Object)) {
        for kind in KINDS.iter().copied().filter(|kind| kind.stored) {
            let objects = objects_without_defaults(kind).unwrap_or_else(|| {
                assert!(kind.defaults.0.is_empty() && kind.stored_texts.is_empty(), "{kind:?} has no objects");
                vec![json!({})]
            });
            for object in objects {
                let mut named = map(json!({"metadata": {"name": "a", "uid": "u"}}));
                named.extend(map(object));
                check(kind, named);
            }
        }
    }

    #[test]
    fn completed_object_of_each_kind_needs_no_defaults() {
        each_object(|kind, mut object| {
            kind.complete_stored(&mut object);
            let once = object.clone();
            kind.apply_stored_defaults(&mut object);
            assert_eq!(object, once, "{kind:?}");
            assert!(!kind.complete_stored(&mut object), "{kind:?}");
            assert_eq!(object, once, "{kind:?}");
        });
    }

    #[test]
    fn written_object_of_each_kind_is_complete() {
        let context = |subresource| UpdateContext { subresource, now: OffsetDateTime::UNIX_EPOCH };
        each_object(|kind, object| {
            let complete = |step: &str, object: &Object| {
                let mut read = object.clone();
                assert!(!kind.complete_stored(&mut read), "{step} of {kind:?} stores {object:?}, reads {read:?}");
            };
            let decode = |mut object: Object| {
                Strategy::apply_defaults(kind, &mut object).unwrap();
                Strategy::late_defaults(kind, &mut object);
                object
            };
            let mut created = decode(object.clone());
            let make = CreateContext { uid: "u", now: "2024-01-01T00:00:00Z", user: UserInfo::admin() };
            Strategy::prepare_for_create(kind, &mut created, make);
            complete("create", &created);
            let mut updated = decode(object.clone());
            if let Some(status) = created.get("status") {
                updated.insert("status", status.clone());
            }
            Strategy::prepare_for_update(kind, &mut updated, &created, context(None));
            complete("update", &updated);
            let mut reported = updated.clone();
            let (Some(status), true) = (object.get("status"), kind.has_subresource("status")) else { return };
            reported.insert("status", status.clone());
            let mut reported = decode(reported);
            Strategy::prepare_for_update(kind, &mut reported, &updated, context(Some(&Subresource::Status)));
            complete("status update", &reported);
        });
    }
}
