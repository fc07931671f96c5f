//! PUT and PATCH: the optimistic loop around one change of one object.

use std::borrow::Cow;

use listwatch_meta::{FieldError, Key, ResourceVersion, Revision, Status};
use listwatch_storage::{Decision, KeyValue};
use listwatch_wire::media_type::{PatchType, Served, negotiate_patch};
use serde_json::{Map, Value};

use super::admission::{NoPriority, PriorityClass};
use super::decode::{self, Expected, KindProblem, Unfit, decode};
use super::merge_keys::{self, At};
use super::options::{FieldValidation, Options};
use super::ownership::{self, Sent};
use super::patch::ParsedPatch;
use super::services::{self, Grant, Unfilled, Wanted};
use super::store::{self, Done, Faulted};
use super::{Clock, WriteRequest, WriteResponse, admission, create, new_uid, prepare};
use crate::auth::User;
use crate::backend::Backend;
use crate::crd::strategy;
use crate::registry::{Registry, Resource, Subresource};
use listwatch_kinds::CreateContext;
use listwatch_meta::go::{self, Words};
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};

/// One object about to be changed, and how.
pub(super) struct Target<'a> {
    pub(super) backend: &'a Backend,
    pub(super) registry: &'a Registry,
    pub(super) resource: &'a Resource,
    pub(super) subresource: Option<&'a Subresource>,
    pub(super) namespace: Option<&'a str>,
    pub(super) name: &'a str,
    pub(super) dry_run: bool,
    /// How it is told that what is to be stored cannot be decoded.
    pub(super) told: Told<'a>,
    /// The field manager.
    pub(super) manager: &'a str,
    /// Who writes.
    pub(super) user: &'a User,
    /// Who keeps account of who owns which field.
    pub(super) account: Account,
    pub(super) clock: &'a Clock,
}

/// How it is told that what is to be stored cannot be decoded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told<'a> {
    /// The body is no such object: 400.
    Body,
    /// It is the patch's fault, and the client is shown what it makes: 422.
    Patch,
    /// It is the fault of this strategic merge patch, which the client is shown: 422.
    Strategic(&'a [u8]),
    /// A configuration, of the object so described, merges into none: 500.
    Applied(&'a str),
}

/// Who keeps account of who owns which field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Account {
    /// What a write changes goes over to its manager.
    Update,
    /// It is kept already in what is to be written.
    Kept,
}

/// Why a decision was not made.
pub(super) enum Refusal {
    /// The client is told this.
    Status(Box<Status>),
    /// The service needs addresses or ports first.
    Wants(Wanted),
    /// The class that the new pod names is to be looked up first.
    WantsClass(String),
    /// The store does not take so large an object.
    TooLarge(Box<Status>),
    /// Nothing was written.
    Abandoned(Box<Status>),
}

impl From<Unfilled> for Refusal {
    fn from(missing: Unfilled) -> Self {
        match missing {
            Unfilled::Wants(wanted) => Refusal::Wants(wanted),
            Unfilled::Status(status) => Refusal::Status(status),
        }
    }
}

impl From<NoPriority> for Refusal {
    fn from(missing: NoPriority) -> Self {
        match missing {
            NoPriority::Unknown(class) => Refusal::WantsClass(class),
            NoPriority::Refused(status) => Refusal::Status(status),
        }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal::Status(Box::new(status))
    }
}

impl From<Faulted> for Refusal {
    fn from(faulted: Faulted) -> Self {
        match faulted {
            Faulted::TooLarge(status) => Refusal::TooLarge(Box::new(status)),
            Faulted::Abandoned(status) => Refusal::Abandoned(Box::new(status)),
            Faulted::Other(status) => Refusal::Status(Box::new(status)),
        }
    }
}

/// What an object is before a change: its tree without resource version, and its revision.
pub(super) struct Base<'a> {
    pub(super) object: &'a Map<String, Value>,
    pub(super) revision: Revision,
}

impl Base<'_> {
    /// Its finalizers.
    pub(super) fn finalizers(&self) -> Vec<String> {
        meta::finalizers(metadata(self.object)).into_iter().map(str::to_owned).collect()
    }

    /// The tree as a client sees it, with the resource version, to be changed.
    pub(super) fn visible(&self) -> Map<String, Value> {
        let mut object = self.object.clone();
        let version = Value::String(self.revision.to_string());
        metadata_mut(&mut object).insert("resourceVersion".to_owned(), version);
        object
    }
}

impl Target<'_> {
    /// What is to be warned of in the finalizers of a changed object, beyond those that were `known`.
    pub(super) fn finalizer_warnings(&self, metadata: &Map<String, Value>, known: &[String]) -> Vec<String> {
        // A status has none.
        if !self.resource.custom || self.subresource.is_some() {
            return Vec::new();
        }
        meta::finalizer_warnings(metadata, known)
    }

    /// Changes the object as `make` says. `make` is shown the present state (`None`: not there) and
    /// gives the whole new object, with the resource version that the client claims, if any; it may
    /// be called several times.
    ///
    /// # Errors
    /// What `make` refuses with; 404 when the object is not there and may not be created; 409 when
    /// the claimed version or `uid` is not the present one; 422 when the result is not valid.
    pub(super) async fn change(
        &self,
        key: &Key,
        uid: Option<&str>,
        create_absent: bool,
        mut make: impl FnMut(Option<Base<'_>>) -> Result<Map<String, Value>, Status>,
    ) -> Result<Done, Status> {
        let resource = self.resource;
        let _creating = create_absent.then(|| resource.creating()).flatten();
        let mut _inside = None;
        let may_create =
            if create_absent && let Err(status) = admission::definition_is_open(self.backend, resource, self.name) {
                Err(status)
            } else if create_absent {
                match self.namespace.filter(|_| resource.namespaced) {
                    Some(namespace) => {
                        admission::namespace_is_open(self.backend, self.registry, resource, namespace, self.name)
                            .await
                            .map(|inside| _inside = inside)
                    }
                    None => Ok(()),
                }
            } else {
                Err(Status::not_found(resource.gr(), self.name))
            };
        let mut grant = Grant::default();
        let mut class = None;
        // Who owns what is left out of an object that the store would not take otherwise. An apply is about
        // that, and is refused.
        let mut forgotten = false;
        // The last state that was decided upon, and what it was to become.
        let mut before = Map::new();
        let mut after = Map::new();
        let done = loop {
            let decide = |found: Option<&KeyValue>| -> Result<Decision, Refusal> {
                let Some(found) = found else {
                    check_uid(resource, key, uid.filter(|_| create_absent), "")?;
                    may_create.clone()?;
                    let mut object = make(None)?;
                    let sent = Sent::of(resource, &object);
                    self.complete(&mut object)?;
                    if self.account == Account::Update {
                        ownership::account(self, None, &mut object, &sent);
                    }
                    self.keep(&mut object)?;
                    admission::set_priority(resource, &mut object, self.name, class.as_ref())?;
                    let (uid, now) = (new_uid(self.clock), self.clock.now());
                    prepare::create(resource, &mut object, CreateContext { uid: &uid, now: &now, user: self.user })?;
                    admission::signer_may_be_asked(resource, &object)?;
                    grant.fill(resource, &mut object, None)?;
                    resource.to_stored(&mut object);
                    if forgotten {
                        ownership::forget(&mut object);
                    }
                    let value = store::encode(&object);
                    (before, after) = (Map::new(), object);
                    return Ok(Decision::Write { value, ttl: create::ttl(resource) });
                };
                let stored = Value::Object(store::parse(found)?);
                let shown = match resource.read_stored(ownership::as_map(&stored)) {
                    Cow::Borrowed(_) => None,
                    Cow::Owned(tree) => Some(Value::Object(tree)),
                };
                let live = shown.as_ref().unwrap_or(&stored);
                let old = ownership::as_map(live);
                check_uid(resource, key, uid, meta::text(metadata(old), "uid"))?;
                let base = Base { object: old, revision: found.modified };
                let mut object = make(Some(base))?;
                self.check_version(metadata(&object), found.modified)?;
                let sent = Sent::of(resource, &object);
                self.complete(&mut object)?;
                if self.account == Account::Update {
                    ownership::account(self, Some(live), &mut object, &sent);
                }
                self.keep(&mut object)?;
                // What is judged is in one version, before and after.
                let old = if resource.conversion.is_some() { ownership::as_map(&stored) } else { old };
                prepare::update(resource, self.subresource, &mut object, old, self.clock)?;
                grant.fill(resource, &mut object, Some(old))?;
                let settled = if forgotten {
                    ownership::forget(&mut object);
                    true
                } else {
                    ownership::settle(old, &mut object)
                };
                let completes = prepare::completes_deletion(resource, &object, old);
                resource.to_stored(&mut object);
                let may_be_same = settled || shown.is_some() || resource.conversion.is_some();
                let decision = if completes {
                    Decision::Delete
                } else if may_be_same && object == *ownership::as_map(&stored) {
                    Decision::Nothing
                } else {
                    Decision::Write { value: store::encode(&object), ttl: create::ttl(resource) }
                };
                (before, after) = (ownership::into_map(stored), object);
                Ok(decision)
            };
            match store::run(self.backend, resource, key, self.dry_run, decide).await {
                Err(Refusal::Wants(wanted)) => {
                    let more = wanted.claim(self.backend, self.registry, self.dry_run, self.clock).await;
                    match more {
                        Ok(more) => grant.add(more),
                        Err(status) => {
                            grant.release(self.backend).await;
                            return Err(status);
                        }
                    }
                }
                Err(Refusal::WantsClass(name)) => {
                    let of = (resource, self.name);
                    match PriorityClass::look_up(self.backend, self.registry, &name, of).await {
                        Ok(found) => class = Some(found),
                        Err(status) => {
                            grant.release(self.backend).await;
                            return Err(status);
                        }
                    }
                }
                Err(Refusal::TooLarge(_)) if self.account == Account::Update && !forgotten => forgotten = true,
                Err(Refusal::TooLarge(status) | Refusal::Abandoned(status)) => {
                    grant.release(self.backend).await;
                    return Err(*status);
                }
                Err(Refusal::Status(status)) => {
                    grant.release_unless_unknown(self.backend, &status).await;
                    return Err(*status);
                }
                Ok(done) => break done,
            }
        };
        if !self.dry_run {
            let (gone, at) = match &done {
                Done::Deleted { revision, .. } => (true, *revision),
                Done::Updated { revision, .. } => (false, Some(*revision)),
                Done::Created { .. } | Done::Unchanged(_) | Done::Absent => (false, None),
            };
            if gone {
                grant.release(self.backend).await;
            } else {
                grant.keep_used(self.backend, &after).await;
            }
            if let Some(at) = at {
                let after = (!gone).then_some(&after);
                services::release_unused(self.backend, self.registry, resource, &before, after, at).await;
            }
        }
        Ok(match done {
            // The client sees what it made of the object, at the version it made it of.
            Done::Deleted { previous, .. } => {
                Done::Updated { value: store::encode(&after), revision: previous.modified }
            }
            done => done,
        })
    }

    fn complete(&self, object: &mut Map<String, Value>) -> Result<(), Status> {
        prepare::complete(self.resource, object).map_err(|why| self.undecodable(object, &why))
    }

    fn keep(&self, object: &mut Map<String, Value>) -> Result<(), Status> {
        prepare::keep(self.resource, object).map_err(|why| self.undecodable(object, &why))
    }

    fn undecodable(&self, object: &mut Map<String, Value>, why: &str) -> Status {
        // The converter reads what is no text by the decoder, and says so.
        let converted = || if why.starts_with("illegal base64") { "error decoding from json: " } else { "" };
        match self.told {
            Told::Body => decode::cannot_handle(object, Expected::of(self.resource), why),
            Told::Patch => {
                ownership::spell_out(object);
                not_decodable(object, why)
            }
            Told::Strategic(patch) => match ParsedPatch::parse(PatchType::StrategicMerge, patch) {
                Ok(parsed) => not_decodable_from(&parsed.patch.shown(), &format!("{}{why}", converted())),
                Err(status) => status,
            },
            Told::Applied(described) => not_convertible(described, &format!("{}{why}", converted())),
        }
    }

    /// The version a client claims must be the present one; none is fine where the kind allows it.
    fn check_version(&self, metadata: &Map<String, Value>, present: Revision) -> Result<(), Status> {
        let resource = self.resource;
        let claimed = ResourceVersion::new(meta::text(metadata, "resourceVersion")).revision().map_err(|error| {
            // The plain error of Go's parser is all that kube-apiserver says.
            let text = error.to_string();
            Status::unknown(text.find("strconv.").map_or(text.as_str(), |at| &text[at..]))
        })?;
        if claimed == present || (claimed.is_zero() && resource.strategy.unconditional_update) {
            return Ok(());
        }
        if claimed.is_zero() {
            let error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
            return Err(Status::invalid(&resource.group, &resource.plural, self.name, &[error]));
        }
        Err(Status::modified(resource.gr(), self.name))
    }
}

fn check_uid(resource: &Resource, key: &Key, wanted: Option<&str>, found: &str) -> Result<(), Status> {
    match wanted {
        Some(wanted) if wanted != found => Err(Status::conflict(
            resource.gr(),
            key.name(),
            format_args!(
                "StorageError: invalid object, Code: 4, Key: /registry{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
            ),
        )),
        _ => Ok(()),
    }
}

/// PUT of an object or of a subresource that has the object's kind.
///
/// # Errors
/// The [`Status`] the client is told.
pub(super) async fn update(target: &Target<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let options = Options::parse("UpdateOptions", request.query)?;
    let target = &Target { dry_run: options.dry_run, ..*target };
    let resource = target.resource;
    let decode_again = || -> Result<decode::Decoded, Status> {
        let expected = Expected::of(resource);
        let mut decoded =
            decode(target.registry, expected, request.content_type, &request.body, options.field_validation)?;
        let metadata = metadata_mut(&mut decoded.object);
        create::place(resource, request.namespace, metadata)?;
        check_name(metadata, target.name)?;
        decoded.warnings.extend(meta::dedup_owners(metadata));
        if strategy::is_definition(resource) && target.subresource.is_none() {
            decoded.warnings.extend(strategy::warnings(&decoded.object));
        }
        Ok(decoded)
    };
    let first = decode_again()?;
    let mut warnings = first.warnings;
    let mut of_finalizers = Vec::new();
    let uid = Some(meta::text(metadata(&first.object), "uid").to_owned()).filter(|uid| !uid.is_empty());
    let create_absent = resource.strategy.create_on_update && target.subresource.is_none();
    let key = resource.key(request.namespace, target.name)?;
    // The first attempt takes the tree; another one, which is rare, decodes again.
    let mut first = Some(first.object);
    let make = |base: Option<Base<'_>>| {
        let object = match first.take() {
            Some(object) => object,
            None => decode_again()?.object,
        };
        if resource.custom {
            let known = base.as_ref().map(Base::finalizers).unwrap_or_default();
            of_finalizers = target.finalizer_warnings(metadata(&object), &known);
        }
        Ok(object)
    };
    let done = target.change(&key, uid.as_deref(), create_absent, make).await?;
    warnings.extend(of_finalizers);
    done.response(resource, &key, warnings)
}

/// PATCH of an object or of a subresource that has the object's kind.
///
/// # Errors
/// The [`Status`] the client is told.
pub(super) async fn patch(target: &Target<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let resource = target.resource;
    let PatchRequest { patch_type, options } = patch_request(resource, request)?;
    if patch_type == PatchType::Apply {
        return ownership::apply(target, request, &options).await;
    }
    let told = match patch_type {
        PatchType::StrategicMerge => Told::Strategic(&request.body),
        _ => Told::Patch,
    };
    let target = &Target { dry_run: options.dry_run, told, ..*target };
    let key = resource.key(request.namespace, target.name)?;
    let at = merge_keys::of_kind(&resource.group, &resource.version, &resource.kind);
    let mut patcher = Patcher::new(patch_type, request, options.field_validation)?;
    let mut warnings = Vec::new();
    let make = |base: Option<Base<'_>>| {
        let Some(base) = base else { return Err(Status::not_found(resource.gr(), target.name)) };
        let mut object = base.visible();
        let body = Body { registry: target.registry, expected: Expected::of(resource), at };
        warnings = patcher.apply(&mut object, body)?;
        let metadata = metadata_mut(&mut object);
        create::place(resource, request.namespace, metadata)?;
        check_name(metadata, target.name)?;
        warnings.extend(meta::dedup_owners(metadata));
        warnings.extend(target.finalizer_warnings(metadata, &base.finalizers()));
        if strategy::is_definition(resource) && target.subresource.is_none() {
            warnings.extend(strategy::warnings(&object));
        }
        Ok(object)
    };
    let done = target.change(&key, None, false, make).await?;
    done.response(resource, &key, warnings)
}

/// The type and the options of a PATCH.
pub(super) struct PatchRequest {
    pub(super) patch_type: PatchType,
    pub(super) options: Options,
}

/// Reads the type and the options of a PATCH.
///
/// # Errors
/// 415 for a type this server does not take, 422 for options that are not valid.
pub(super) fn patch_request(resource: &Resource, request: &WriteRequest<'_>) -> Result<PatchRequest, Status> {
    let served = if resource.custom { Served::CUSTOM_JSON } else { Served::BUILTIN_JSON };
    let patch_type = negotiate_patch(request.content_type, &served)?;
    Ok(PatchRequest { patch_type, options: Options::parse_patch(patch_type, request.query)? })
}

/// The name in a body must be the one in the path.
///
/// # Errors
/// 400 when it is missing or another one.
pub(super) fn check_name(metadata: &Map<String, Value>, expected: &str) -> Result<(), Status> {
    match meta::text(metadata, "name") {
        name if name == expected => Ok(()),
        "" => Err(Status::bad_request(format!(
            "the name of the object ({expected} based on URL) was undeterminable: name must be provided"
        ))),
        name => Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({expected})"
        ))),
    }
}

/// 422: the patch makes something of the object that cannot be decoded.
fn not_decodable(object: &Map<String, Value>, why: &str) -> Status {
    not_decodable_from(&Value::Object(object.clone()).to_string(), why)
}

/// As [`not_decodable`], with what the client is shown of the patch or of what it makes.
fn not_decodable_from(shown: &str, why: &str) -> Status {
    Status::invalid("", "", "", &[FieldError::invalid("patch", Value::from(shown), why)])
}

/// 500: what a configuration merges into is no object of its kind.
pub(super) fn not_convertible(described: &str, why: &str) -> Status {
    Status::unknown(format!("failed to convert new typed object ({described}) to object: {why}"))
}

/// A patch that can be applied as often as the loop needs it.
pub(super) struct Patcher<'a> {
    patch_type: PatchType,
    body: &'a [u8],
    validation: FieldValidation,
    parsed: Option<ParsedPatch>,
}

/// What a patch is applied to.
pub(super) struct Body<'a> {
    pub(super) registry: &'a Registry,
    pub(super) expected: Expected<'a>,
    pub(super) at: At,
}

impl<'a> Patcher<'a> {
    /// Parses the patch once, so that a malformed one is refused before anything is read.
    ///
    /// # Errors
    /// 400 or 413; see [`ParsedPatch::parse`].
    pub(super) fn new(
        patch_type: PatchType,
        request: &'a WriteRequest<'_>,
        validation: FieldValidation,
    ) -> Result<Self, Status> {
        let parsed = Some(ParsedPatch::parse(patch_type, &request.body)?);
        Ok(Patcher { patch_type, body: &request.body, validation, parsed })
    }

    /// Applies the patch and checks that the result is still of its kind. Returns the warnings.
    ///
    /// # Errors
    /// 400 or 422.
    pub(super) fn apply(&mut self, object: &mut Map<String, Value>, body: Body<'_>) -> Result<Vec<String>, Status> {
        let parsed = match self.parsed.take() {
            Some(parsed) => parsed,
            None => ParsedPatch::parse(self.patch_type, self.body)?,
        };
        let kind_counts = parsed.patch.may_change_kind();
        let looks_at_owners = parsed.patch.may_touch_owners();
        if looks_at_owners {
            ownership::spell_out(object);
        }
        let body = Body { expected: Expected { words: parsed.patch.words(), ..body.expected }, ..body };
        parsed.patch.apply(object, body.at)?;
        if body.expected.custom {
            check_custom_kind(body.expected, object)?;
        }
        // What the patch left alone is of the right shape, and no text to those who look at the rest.
        let owners = match object.get_mut("metadata") {
            Some(Value::Object(metadata)) if !looks_at_owners => metadata.shift_remove(ownership::MANAGED_FIELDS),
            _ => None,
        };
        let found = self.check(object, &body, kind_counts, parsed.doubts);
        let with_owners = |object: &mut Map<String, Value>| {
            if let Some(owners) = owners {
                metadata_mut(object).insert(ownership::MANAGED_FIELDS.to_owned(), owners);
            }
        };
        match found {
            Ok(doubts) => {
                *object = decode::ordered(std::mem::take(object), body.expected)?;
                with_owners(object);
                Ok(doubts)
            }
            Err(Undecodable::TooLarge) => Err(store::too_large()),
            Err(Undecodable::Text { why, .. }) if self.patch_type == PatchType::StrategicMerge => {
                Err(not_decodable_from(&ParsedPatch::parse(self.patch_type, self.body)?.patch.shown(), &why))
            }
            Err(Undecodable::Text { shown, why }) => {
                let mut shown = shown.unwrap_or_else(|| std::mem::take(object));
                with_owners(&mut shown);
                if !looks_at_owners {
                    ownership::spell_out(&mut shown);
                }
                Err(not_decodable(&shown, &why))
            }
        }
    }

    /// Checks that a patched object is of its kind and makes it fit. Returns what is to be warned of.
    fn check(
        &self,
        object: &mut Map<String, Value>,
        body: &Body<'_>,
        kind_counts: bool,
        mut doubts: Vec<String>,
    ) -> Result<Vec<String>, Undecodable> {
        let undecodable = |why: String| Undecodable::Text { shown: None, why };
        let sorted_from = doubts.len();
        if kind_counts {
            match decode::kind_problem(body.registry, body.expected, object) {
                None => {}
                Some(KindProblem::Kind(why) | KindProblem::Version(why)) => return Err(undecodable(why)),
            }
        }
        if let Some(metadata) = object.get("metadata") {
            meta::check_shape(body.expected.kind, body.expected.words, metadata).map_err(undecodable)?;
        }
        if let Some(Value::Object(metadata)) = object.get("metadata") {
            doubts.extend(meta::unknown_fields(metadata).map(|path| format!("unknown field {path:?}")));
        }
        let patched =
            (self.validation == FieldValidation::Strict && body.expected.may_change(object)).then(|| object.clone());
        doubts.extend(decode::fit(object, body.expected).map_err(|unfit| match unfit {
            Unfit::Text(why) => undecodable(why),
            Unfit::TooLarge => Undecodable::TooLarge,
        })?);
        if let (Words::Converter, Some(unknown)) = (body.expected.words, doubts.get_mut(sorted_from..)) {
            unknown.sort_unstable();
        }
        match self.validation {
            FieldValidation::Ignore => doubts.clear(),
            FieldValidation::Strict if !doubts.is_empty() => {
                let why = format!("strict decoding error: {}", doubts.join(", "));
                return Err(Undecodable::Text { shown: patched, why });
            }
            FieldValidation::Warn | FieldValidation::Strict => {}
        }
        Ok(doubts)
    }
}

/// Checks what a patch made of the kind of a custom object, whose decoder knows no kinds but wants one.
///
/// # Errors
/// 422 where it is another one or none.
fn check_custom_kind(expected: Expected<'_>, object: &Map<String, Value>) -> Result<(), Status> {
    match object.get("kind") {
        Some(Value::String(kind)) if kind == expected.kind => Ok(()),
        Some(Value::String(kind)) if !kind.is_empty() => {
            let error = FieldError::invalid("kind", go::quote(kind), format_args!("must be {}", expected.kind));
            Err(Status::invalid(expected.group, kind, meta::text(metadata(object), "name"), &[error]))
        }
        None | Some(Value::Null | Value::String(_)) => {
            let mut object = object.clone();
            ownership::spell_out(&mut object);
            let shown = Value::Object(object).to_string();
            Err(not_decodable_from(&shown, &format!("Object 'Kind' is missing in '{shown}'")))
        }
        // Another type of value is refused as such.
        Some(_) => Ok(()),
    }
}

/// Why a patched object is none of its kind.
enum Undecodable {
    /// What is wrong, and what the client is shown; `None` for the object as it is now.
    Text { shown: Option<Map<String, Value>>, why: String },
    /// Its defaults make it too large.
    TooLarge,
}
