//! [`Kind`]: the description of a built-in kind.

use std::fmt;

use listwatch_meta::UserInfo;
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object};
use serde_json::json;
use time::OffsetDateTime;

use crate::defaults::Defaults;
use crate::printers::{self, Printer};
use crate::strategy::Deletion;
use crate::subresource::Subresource;
use crate::write_scope::WriteScope;

/// A built-in kind: what the server must know about it. All functions are pure.
///
/// A kind is a `static` that starts from [`Kind::namespaced`] or [`Kind::cluster`] and names what differs.
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
    /// Whether objects are stored. Reviews, bindings and component statuses are answered and not stored.
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
    /// Whether PUT without a resource version overwrites; a 422 otherwise. True by default.
    pub unconditional_update: bool,
    /// Whether PUT of an absent object creates it.
    pub create_on_update: bool,
    /// Whether `metadata.generation` counts changes of anything but metadata and status.
    pub generation: bool,
    /// Whether `metadata.generation` counts changes of annotations, too.
    pub generation_counts_annotations: bool,
    /// Whether deletion waits for a grace period (`spec.terminationGracePeriodSeconds` of pods).
    pub graceful_delete: bool,
    /// Objects expire after this many seconds.
    pub ttl_seconds: Option<u64>,
    /// The warning that each answer carries, for a deprecated version.
    pub deprecation: Option<&'static str>,
    /// The default values of absent fields.
    pub defaults: &'static Defaults,
    /// Applies defaults that depend on other fields and that the writer comes to own.
    pub late_defaults: fn(&mut Object),
    /// The status of a new object, for kinds with the status subresource; `None` keeps the client's.
    pub initial_status: fn() -> Option<serde_json::Value>,
    /// Whether `null` members mean something: they are dropped from objects of other kinds.
    pub keeps_nulls: bool,
    /// Changes a decoded body before defaults apply. The error is what upstream's decoder says.
    pub normalize: fn(&mut Object) -> Result<(), String>,
    /// Completes a new object after defaults apply (`PrepareForCreate`).
    pub prepare_for_create: fn(&mut Object, CreateContext<'_>),
    /// Completes the new state of an object (`PrepareForUpdate`). Fields that the write cannot change are reset
    /// already.
    pub prepare_for_update: fn(&mut Object, &Object, UpdateContext<'_>),
    /// Validates an object (`Validate`). The second argument is the object that it replaces: some rules accept
    /// what was stored before they came.
    pub validate: fn(&Object, Option<&Object>, &mut Errors),
    /// Validates what a write of the whole object changes (`ValidateUpdate`): new, old.
    pub validate_update: fn(&Object, &Object, &mut Errors),
    /// Validates a status that is written through the subresource: new, old.
    pub validate_status: fn(&Object, Option<&Object>, &mut Errors),
    /// Validates what a write of the object or of any subresource changes: new, old.
    pub validate_transition: fn(&Object, &Object, UpdateContext<'_>, &mut Errors),
    /// Warnings for the client that writes an object (`WarningsOnCreate`, `WarningsOnUpdate`).
    pub warnings: fn(&Object) -> Vec<String>,
    /// Fields of the spec that admission fills in. A client that leaves them out does not own them.
    pub admission_fields: &'static [&'static str],
    /// Begins the deletion of an object that other work must precede; the second argument is the time.
    pub begin_deletion: fn(&mut Object, &str) -> Deletion,
    /// Whether the object must stay although nothing else holds its deletion.
    pub holds_deletion: fn(&Object) -> bool,
    /// The warning for a client that deletes an object without a propagation policy.
    pub delete_warning: Option<&'static str>,
    /// Whether deletion leaves dependents behind, unless the client says otherwise.
    pub orphans_dependents: bool,
    /// Whether deletion answers with the last state instead of a Status (`ReturnDeletedObject`).
    pub returns_deleted: bool,
    /// Whether the spec never changes after creation.
    pub keeps_spec: bool,
    /// What a write of the status subresource changes.
    pub status_write: WriteScope,
    /// The columns of a Table and how a row is made.
    pub printer: &'static Printer,
    /// The members, besides metadata, that Go prints for an object of this kind with no field set. Bookmarks
    /// carry such an object.
    pub zero_members: &'static str,
    /// The part of the object that is stored and not enforced by this server.
    pub unenforced: Option<Unenforced>,
}

/// A selectable field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The label in field selectors.
    pub label: &'static str,
    /// The dotted path of the value.
    pub path: &'static str,
    /// The value where the object has none.
    pub default: &'static str,
    /// Another selectable field whose value counts where this one is empty.
    pub or_field: Option<&'static str>,
    /// Whether lists and watches by this field use an index.
    pub indexed: bool,
}

impl Field {
    /// A field whose label is its path; `""` where absent.
    pub const fn new(path: &'static str) -> Self {
        Field::with_default(path, "")
    }

    /// A field whose label is its path, with the default value that Kubernetes fills in.
    pub const fn with_default(path: &'static str, default: &'static str) -> Self {
        Field { label: path, path, default, or_field: None, indexed: false }
    }
}

/// What this server stores and does not enforce. The client that writes it gets a warning.
#[derive(Debug, Clone, Copy)]
pub struct Unenforced {
    /// The part of the object that would have an effect in kube-apiserver.
    pub part: UnenforcedPart,
    /// What does not happen; the end of the warning.
    pub consequence: &'static str,
}

/// The part of an object that is not enforced.
#[derive(Debug, Clone, Copy)]
pub enum UnenforcedPart {
    /// The whole object.
    Object,
    /// The value at a JSON pointer.
    Field(&'static str),
    /// Labels whose keys have this prefix.
    Label(&'static str),
    /// This annotation, set to `true`.
    Annotation(&'static str),
}

/// What a new object is made with.
#[derive(Debug, Clone, Copy)]
pub struct CreateContext<'a> {
    /// The new object's uid.
    pub uid: &'a str,
    /// The time of the creation, RFC 3339 in whole seconds.
    pub now: &'a str,
    /// The user who creates the object.
    pub user: &'a UserInfo,
}

/// What an object is changed with.
#[derive(Debug, Clone, Copy)]
pub struct UpdateContext<'a> {
    /// The subresource that is written; `None` for the object itself.
    pub subresource: Option<&'a Subresource>,
    /// The time of the change.
    pub now: OffsetDateTime,
}

impl Kind {
    /// A kind whose objects live in namespaces.
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
            unconditional_update: true,
            create_on_update: false,
            generation: false,
            generation_counts_annotations: false,
            graceful_delete: false,
            ttl_seconds: None,
            deprecation: None,
            defaults: &Defaults::NONE,
            late_defaults: |_| {},
            initial_status: || Some(json!({})),
            keeps_nulls: false,
            normalize: |_| Ok(()),
            prepare_for_create: |_, _| {},
            prepare_for_update: |_, _, _| {},
            validate: |_, _, _| {},
            validate_update: |_, _, _| {},
            validate_status: |_, _, _| {},
            validate_transition: |_, _, _, _| {},
            warnings: |_| Vec::new(),
            admission_fields: &[],
            begin_deletion: |_, _| Deletion::Unheld,
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

    /// A kind whose objects are cluster-scoped.
    pub const fn cluster(group: &'static str, version: &'static str, plural: &'static str, kind: &'static str) -> Self {
        Kind { namespaced: false, ..Kind::namespaced(group, version, plural, kind) }
    }

    /// Whether a subresource of this name is served.
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|subresource| subresource.name() == name)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kind({}/{} {})", self.group, self.version, self.kind)
    }
}
