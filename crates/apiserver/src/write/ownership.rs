//! Who owns which field: `metadata.managedFields` of every write, and server-side apply. The rules are
//! those of [`listwatch_apply`]; here is what they need to know of a resource and a request.
//!
//! In the tree of an object that comes from the store or goes there, `metadata.managedFields` is its
//! JSON text, which [`super::store`] reads and writes as such: as a tree it would be most of the
//! names of an object, and nobody looks into it but [`managed::from_text`]. What a client sends is a tree, and
//! where a patch may look into it [`spell_out`] makes it one.

use std::sync::LazyLock;

use listwatch_apply::managed::{self, Managed};
use listwatch_apply::{ApplyError, Kind, Path, Set, Typing, Writer};
use listwatch_meta::Status;
use listwatch_meta::status::{
    FIELD_ERROR_BYTES_MAX, STATUS_TEXT_BYTES_MAX, StatusCause, StatusDetails, bounded_causes, cut, reason,
};
use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::decode::{self, Expected, Unfit};
use super::document::Document;
use super::options::{FIELD_MANAGER_BYTES_MAX, FieldValidation, Options};
use super::pipeline::{Absent, Base, DecodeErrorStyle, ManagedFields, Write};
use super::store::{self, OBJECT_DEPTH_MAX, is_deeper};
use super::update::{check_name, not_convertible};
use super::{WriteRequest, WriteResponse, create};
use crate::registry::{Registry, Resource, Subresource};
use crate::versions;
use listwatch_meta::go::Words;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};

/// Where in the metadata the account is.
pub(super) const MANAGED_FIELDS: &str = "managedFields";

/// The field manager of a request: as it says, else what its `User-Agent` has before the first `/`.
pub(super) fn manager(request: &WriteRequest<'_>) -> String {
    if let Some(named) = request.query.all("fieldManager").next().filter(|named| !named.is_empty()) {
        return named.to_owned();
    }
    let agent = request.user_agent.unwrap_or_default();
    let mut name = String::new();
    for char in agent.split('/').next().unwrap_or_default().chars().filter(|char| !char.is_control()) {
        if name.len() + char.len_utf8() > FIELD_MANAGER_BYTES_MAX {
            break;
        }
        name.push(char);
    }
    name
}

/// The kind of a resource, with how its objects merge; made when it is first written to.
pub(super) fn kind<'a>(registry: &Registry, resource: &'a Resource) -> &'a Kind {
    resource.merging.get_or_init(|| {
        let typing_of = |resource: &Resource| match resource.openapi_schema() {
            Some(schema) => Typing::of_custom_resource(&schema, false),
            None => Typing::deduced(),
        };
        let api_version = resource.api_version();
        if !resource.custom {
            let built_in = |version: &str| Typing::of_built_in(version, &resource.kind).unwrap_or_else(Typing::deduced);
            let kind = Kind::built_in(&api_version, &resource.kind, built_in(&api_version));
            return match versions::other(&api_version, &resource.kind) {
                Some((other, convert)) => kind.with_version(&other, built_in(&other), convert),
                None => kind,
            };
        }
        let same = |other: &Resource| other.custom && other.group == resource.group && other.kind == resource.kind;
        let others = registry.resources().iter().filter(|other| same(other) && other.version != resource.version);
        let others = others.map(|other| (other.api_version(), typing_of(other))).collect();
        Kind::custom(&api_version, &resource.kind, typing_of(resource), others)
    })
}

/// The kind of Scales.
pub(super) fn scale_kind() -> &'static Kind {
    static SCALE: LazyLock<Kind> = LazyLock::new(|| {
        let typing = Typing::of_built_in(managed::SCALE_VERSION, "Scale").unwrap_or_else(Typing::deduced);
        Kind::built_in(managed::SCALE_VERSION, "Scale", typing)
    });
    &SCALE
}

/// What was sent of the fields that admission fills in, before it does.
pub(super) struct Sent {
    absent: Vec<&'static str>,
}

impl Sent {
    /// Looks at an object as a client sent it.
    pub(super) fn of(resource: &Resource, object: &Map<String, Value>) -> Self {
        let fields = resource.strategy.admission_fields().iter().copied();
        let spec = object.get("spec");
        Sent { absent: fields.filter(|name| spec.is_none_or(|spec| spec.get(name).is_none())).collect() }
    }
}

/// Keeps account of a write that is no apply: `new` was made of `old` (`None`: nothing).
pub(super) fn account(write: &Write<'_>, old: Option<&Value>, new: &mut Map<String, Value>, sent: &Sent) {
    // A Scale has an account of its own.
    let write = OwnedWrite {
        registry: write.registry,
        resource: write.resource,
        subresource: write.subresource,
        manager: write.manager,
        now: write.clock.time(),
    };
    write.account(old, new, sent);
}

/// A write, as far as ownership is concerned.
struct OwnedWrite<'a> {
    registry: &'a Registry,
    resource: &'a Resource,
    subresource: Option<&'a Subresource>,
    manager: &'a str,
    now: OffsetDateTime,
}

impl OwnedWrite<'_> {
    fn account(&self, old: Option<&Value>, new: &mut Map<String, Value>, sent: &Sent) {
        self.resource.strategy.late_defaults(new);
        let absent = sent.absent.iter();
        let subresource = self.subresource.map_or("", Subresource::name);
        // What a patch left alone is what is kept.
        let sent = metadata_mut(new).shift_remove(MANAGED_FIELDS).filter(|sent| !sent.is_string());
        let object = Value::Object(std::mem::take(new));
        let mut reset = self.resource.strategy.writes().reset_fields(self.subresource, &object);
        absent.for_each(|name| reset.insert(&Path::of_fields(&["spec", name]).0));
        let by = Writer { manager: self.manager, subresource, now: self.now, reset: &reset };
        let before = || old.map(|old| kept(as_map(old))).unwrap_or_default();
        let managed = kind(self.registry, self.resource).track_update(old, &object, sent.as_ref(), before, by);
        *new = into_map(object);
        if let Some(managed) = managed {
            keep(new, &managed);
        }
    }
}

/// The account that is kept in a tree; an empty one where there is none that can be read.
fn kept(tree: &Map<String, Value>) -> Managed {
    metadata(tree).get(MANAGED_FIELDS).map(account_of).unwrap_or_default()
}

fn account_of(entries: &Value) -> Managed {
    read_account(entries).unwrap_or_default()
}

fn read_account(entries: &Value) -> Result<Managed, String> {
    match entries {
        Value::String(text) => managed::from_text(text),
        entries => managed::decode(entries),
    }
}

/// Keeps an account in a tree that is to be stored.
fn keep(tree: &mut Map<String, Value>, managed: &Managed) {
    let metadata = metadata_mut(tree);
    if managed.is_empty() {
        metadata.shift_remove(MANAGED_FIELDS);
    } else {
        metadata.insert(MANAGED_FIELDS.to_owned(), Value::String(managed::to_text(managed)));
    }
}

/// Takes the account out of a tree that is too large for the store. False where there is none.
pub(super) fn forget(tree: &mut Map<String, Value>) -> bool {
    metadata_mut(tree).shift_remove(MANAGED_FIELDS).is_some()
}

/// Makes the account in a tree a tree, too, as a client sees it.
pub(super) fn spell_out(tree: &mut Map<String, Value>) {
    if let Some(Value::Object(metadata)) = tree.get_mut("metadata")
        && let Some(account) = metadata.get_mut(MANAGED_FIELDS)
        && let Value::String(text) = account
    {
        *account = serde_json::from_str(text).unwrap_or(Value::Null);
    }
}

/// Who owns the replicas of an object whose Scale is written to, and who owns what else.
pub(super) struct ScaleAccount {
    parent: Managed,
    api_version: String,
    replicas: Path,
}

impl ScaleAccount {
    /// The account of an object that has its replicas at a dotted path.
    pub(super) fn of(resource: &Resource, tree: &Map<String, Value>, replicas: &str) -> Self {
        let parent = kept(tree);
        let replicas = Path::of_fields(&replicas.split('.').collect::<Vec<_>>());
        ScaleAccount { parent, api_version: resource.api_version(), replicas }
    }

    /// Gives a Scale its part of the account.
    pub(super) fn show(&self, scale: &mut Map<String, Value>) {
        let entries = managed::encode(&managed::to_scale(&self.parent, &self.api_version, &self.replicas));
        metadata_mut(scale).insert(MANAGED_FIELDS.to_owned(), Value::Array(entries));
    }

    /// Keeps account of a write of a Scale that is no apply.
    pub(super) fn update(&self, write: &Write<'_>, live: Map<String, Value>, scale: &mut Map<String, Value>) {
        let nothing = Set::new();
        let mut new = Value::Object(std::mem::take(scale));
        scale_kind().update(Some(&Value::Object(live)), &mut new, scale_writer(write, &nothing));
        *scale = into_map(new);
    }

    /// Brings the account of a written Scale back to the object.
    pub(super) fn keep(&self, scale: &Map<String, Value>, tree: &mut Map<String, Value>) {
        let all = managed::from_scale(&self.parent, kept(scale), &self.api_version, &self.replicas);
        keep(tree, &all);
    }
}

/// Who writes a Scale.
pub(super) fn scale_writer<'a>(write: &Write<'a>, reset: &'a Set) -> Writer<'a> {
    Writer { manager: write.manager, subresource: "scale", now: write.clock.time(), reset }
}

/// Takes the times of the old account where nothing else changed, so that a write without effect is
/// none. True when such is this write.
pub(super) fn settle(old: &Map<String, Value>, new: &mut Map<String, Value>) -> bool {
    let Some(before) = metadata(old).get(MANAGED_FIELDS) else { return new == old };
    let Some(after) = metadata_mut(new).insert(MANAGED_FIELDS.to_owned(), before.clone()) else {
        metadata_mut(new).shift_remove(MANAGED_FIELDS);
        return false;
    };
    // Mostly something else did change, and nobody has to read the accounts.
    if new == old && (after == *before || managed::differ_in_time_only(&kept(old), &account_of(&after))) {
        return true;
    }
    metadata_mut(new).insert(MANAGED_FIELDS.to_owned(), after);
    false
}

/// A tree that is an object, looked into.
pub(super) fn as_map(value: &Value) -> &Map<String, Value> {
    static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    value.as_object().unwrap_or(&EMPTY)
}

/// A tree that is an object.
pub(super) fn into_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// What a client is told that cannot apply.
fn refused(error: &ApplyError) -> Status {
    let text = cut(error, STATUS_TEXT_BYTES_MAX);
    match error {
        ApplyError::BadRequest(_) => Status::bad_request(text),
        ApplyError::Other(_) => Status::unknown(text),
        ApplyError::Conflicts(conflicts) => {
            let causes = conflicts.iter().map(|conflict| StatusCause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {}", conflict.manager),
                field: cut(&conflict.path, FIELD_ERROR_BYTES_MAX),
            });
            let (causes, _) = bounded_causes(causes);
            let details = StatusDetails { causes, ..StatusDetails::default() };
            Status::failure(409, reason::CONFLICT, text).with_details(details)
        }
    }
}

/// A configuration to be applied, parsed once.
pub(super) struct Config {
    value: Value,
    /// What was doubtful about its text.
    doubts: Vec<String>,
    validation: FieldValidation,
}

impl Config {
    /// Reads the body of an apply: YAML, of which JSON is a special case.
    ///
    /// # Errors
    /// 400 when it is no YAML, no map, or nests too deep.
    pub(super) fn parse(body: &[u8], validation: FieldValidation) -> Result<Self, Status> {
        let undecodable = |why: String| Status::bad_request(format!("error decoding YAML: {why}"));
        let document =
            Document::from_yaml(body).map_err(|why| undecodable(format!("error converting YAML to JSON: {why}")))?;
        if is_deeper(&document.value, OBJECT_DEPTH_MAX, &mut 0) {
            let why = format!("error converting YAML to JSON: yaml: exceeded max depth of {OBJECT_DEPTH_MAX}");
            return Err(undecodable(why));
        }
        let value = match document.value {
            Value::Null => Value::Object(Map::new()),
            value @ Value::Object(_) => value,
            other => {
                let kind = listwatch_meta::go::json_kind(&other);
                return Err(undecodable(format!(
                    "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
                )));
            }
        };
        let doubts =
            document.strict_errors.iter().map(|error| format!("error converting YAML to JSON: {error}")).collect();
        Ok(Config { value, doubts, validation })
    }

    /// Applies the configuration to a live object (`None`: there is none) of a kind.
    ///
    /// # Errors
    /// 409 with a cause for each conflict; 400 and 500 when it cannot be applied at all.
    pub(super) fn apply(
        &self,
        kind: &Kind,
        live: Option<&Value>,
        by: Writer<'_>,
        force: bool,
    ) -> Result<Map<String, Value>, Status> {
        let applied = kind.apply(live, &self.value, by, force).map_err(|error| refused(&error))?;
        self.check_doubts()?;
        Ok(into_map(applied))
    }

    /// As [`Config::apply`], to an object whose account is kept apart from it.
    fn apply_to(
        &self,
        kind: &Kind,
        live: Option<&Value>,
        account: Option<&Value>,
        by: Writer<'_>,
        force: bool,
    ) -> Result<(Map<String, Value>, Managed), Status> {
        let kept = || account.map_or_else(|| Ok(Managed::new()), read_account);
        let (applied, managed) = kind.apply_to(live, kept, &self.value, by, force).map_err(|error| refused(&error))?;
        self.check_doubts()?;
        Ok((into_map(applied), managed))
    }

    fn check_doubts(&self) -> Result<(), Status> {
        if self.validation == FieldValidation::Strict && !self.doubts.is_empty() {
            return Err(Status::bad_request(format!("error strict decoding YAML: {}", self.doubts.join(""))));
        }
        Ok(())
    }

    /// What is to be warned of.
    pub(super) fn warnings(&self) -> Vec<String> {
        if self.validation == FieldValidation::Ignore {
            Vec::new()
        } else {
            decode::strict_warnings(self.doubts.clone())
        }
    }

    fn uid(&self) -> Option<&str> {
        self.value.get("metadata")?.get("uid")?.as_str().filter(|uid| !uid.is_empty())
    }
}

/// PATCH with an apply configuration: of an object, which is created when it is not there, or of a
/// subresource that has the object's kind.
///
/// # Errors
/// The [`Status`] the client is told.
pub(super) async fn apply(
    write: &Write<'_>,
    request: &WriteRequest<'_>,
    options: &Options,
) -> Result<WriteResponse, Status> {
    let resource = write.resource;
    let config = Config::parse(&request.body, options.field_validation)?;
    let kind = kind(write.registry, resource);
    let described = kind.described(&config.value);
    let decode_errors = DecodeErrorStyle::Apply(&described);
    let write = &Write { dry_run: options.dry_run, managed_fields: ManagedFields::Tracked, decode_errors, ..*write };
    let reset = resource.strategy.writes().reset_fields(write.subresource, &config.value);
    let subresource = write.subresource.map_or("", Subresource::name);
    let by = Writer { manager: write.manager, subresource, now: write.clock.time(), reset: &reset };
    let key = resource.key(request.namespace, write.name)?;
    let absent = if write.subresource.is_none() { Absent::Create } else { Absent::NotFound };
    let mut warnings = Vec::new();
    let make = |base: Option<Base<'_>>| {
        let absent = base.is_none();
        let mut live = base.as_ref().map(Base::visible);
        let account = live.as_mut().and_then(|live| metadata_mut(live).shift_remove(MANAGED_FIELDS));
        let live = live.map(Value::Object);
        let (object, managed) = config.apply_to(kind, live.as_ref(), account.as_ref(), by, options.force)?;
        if absent && let Some(uid) = config.uid() {
            return Err(Status::conflict(
                resource.gr(),
                write.name,
                format_args!("uid mismatch: the provided object specified uid {uid}, and no existing object was found"),
            ));
        }
        let mut object = decode::ordered(object, Expected::of(resource))?;
        let expected = Expected { words: Words::Converter, ..Expected::of(resource) };
        decode::fit(&mut object, expected).map_err(|unfit| match (unfit, resource.custom) {
            (Unfit::TooLarge, _) => store::too_large(),
            (Unfit::Text(why), true) => decode::cannot_handle(&object, expected, &why),
            (Unfit::Text(why), false) => not_convertible(&described, &why),
        })?;
        let metadata = metadata_mut(&mut object);
        create::place(resource, request.namespace, metadata)?;
        check_name(metadata, write.name)?;
        warnings = config.warnings();
        warnings.extend(meta::dedup_owners(metadata));
        warnings.extend(write.warnings(&object, base.map(|base| base.object)));
        keep(&mut object, &managed);
        Ok(object)
    };
    let done = write.run(&key, None, absent, make).await?;
    done.response(resource, &key, warnings)
}
