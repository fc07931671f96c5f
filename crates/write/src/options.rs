//! Parses and validates `CreateOptions`, `UpdateOptions`, `PatchOptions` and `DeleteOptions`
//! (`apimachinery/pkg/apis/meta/v1/validation`).

use listwatch_json::{Map, Value};
use listwatch_meta::{FieldError, Status};
use listwatch_wire::media_type::{PatchType, Served};
use listwatch_wire::query::{Query, WriteOptions};

use super::decode::{self, FieldValidation, Unreadable};
use listwatch_meta::go;
use listwatch_validation::object_meta;

/// Maximum bytes of a `fieldManager`.
pub(super) const FIELD_MANAGER_BYTES_MAX: usize = 128;

/// Returns the `fieldManager` of a request. The default is the part of the `User-Agent` before the first `/`.
pub(super) fn field_manager(query: &Query<'_>, user_agent: Option<&str>) -> String {
    if let Some(named) = query.all("fieldManager").next().filter(|named| !named.is_empty()) {
        return named.to_owned();
    }
    let agent = user_agent.unwrap_or_default();
    let mut name = String::new();
    for char in agent.split('/').next().unwrap_or_default().chars().filter(|char| go::is_printable(*char)) {
        if name.len() + char.len_utf8() > FIELD_MANAGER_BYTES_MAX {
            break;
        }
        name.push(char);
    }
    name
}

/// The validated options of a create, an update or a patch.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// Whether the request runs completely but stores nothing (`dryRun=All`).
    pub(super) dry_run: bool,
    pub(super) field_validation: FieldValidation,
    /// Whether an apply takes over fields that other managers own (`force`).
    pub(super) force: bool,
}

impl Options {
    /// Parses the options of a create or an update. `kind` is `CreateOptions` or `UpdateOptions`.
    ///
    /// # Errors
    /// 422 that lists each invalid option.
    pub(super) fn parse(kind: &str, query: &Query<'_>) -> Result<Self, Status> {
        Self::check(kind, &WriteOptions::from_query(query)?, None)
    }

    /// Parses the options of a patch.
    ///
    /// # Errors
    /// 422 that lists each invalid option.
    pub(super) fn parse_patch(patch_type: PatchType, query: &Query<'_>) -> Result<Self, Status> {
        let options = WriteOptions::from_query(query)?;
        let error = match patch_type {
            PatchType::Apply if options.field_manager.is_empty() => {
                Some(FieldError::required("fieldManager", "is required for apply patch"))
            }
            PatchType::Apply => None,
            _ if options.force.is_some() => {
                Some(FieldError::forbidden("force", "may not be specified for non-apply patch"))
            }
            _ => None,
        };
        Self::check("PatchOptions", &options, error)
    }

    fn check(kind: &str, options: &WriteOptions, of_patch: Option<FieldError>) -> Result<Self, Status> {
        let field_validation = field_validation(&options.field_validation);
        let errors: Vec<FieldError> = of_patch
            .into_iter()
            .chain(manager_errors(&options.field_manager))
            .chain(dry_run_error(&options.dry_run))
            .chain(field_validation.as_ref().err().cloned())
            .collect();
        match field_validation {
            Ok(field_validation) if errors.is_empty() => {
                let dry_run = !options.dry_run.is_empty();
                Ok(Options { dry_run, field_validation, force: options.force == Some(true) })
            }
            _ => Err(Status::invalid("meta.k8s.io", kind, "", &errors)),
        }
    }
}

/// Returns the errors of a `fieldManager`: its length, then each character that is not printable.
fn manager_errors(manager: &str) -> impl Iterator<Item = FieldError> {
    let too_long = (manager.len() > FIELD_MANAGER_BYTES_MAX).then(|| {
        let why = format_args!("may not be more than {FIELD_MANAGER_BYTES_MAX} bytes");
        FieldError::too_long("fieldManager", why)
    });
    let unprintable = manager.char_indices().filter(|(_, char)| !go::is_printable(*char));
    too_long.into_iter().chain(unprintable.map(move |(position, char)| {
        let why = format_args!("invalid character U+{:04X} (at position {position})", char as u32);
        FieldError::invalid_text("fieldManager", manager, why)
    }))
}

/// Reads `fieldValidation`. Empty means [`FieldValidation::Warn`].
///
/// # Errors
/// The error of an unsupported value.
fn field_validation(text: &str) -> Result<FieldValidation, FieldError> {
    match text {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        other => Err(FieldError::not_supported("fieldValidation", other, &["", "Ignore", "Strict", "Warn"])),
    }
}

/// Returns the error for `dryRun` values other than `All`.
fn dry_run_error(values: &[String]) -> Option<FieldError> {
    values.iter().any(|value| value != "All").then(|| FieldError {
        field: "dryRun".to_owned(),
        reason: "FieldValueNotSupported",
        message: format!("Unsupported value: {}: supported values: \"All\"", Value::from(values.to_vec())),
    })
}

/// How a deletion treats the dependents of the object (`metav1.DeletionPropagation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Dependents stay and lose the owner reference.
    Orphan,
    /// The garbage collector deletes dependents after the object.
    Background,
    /// Dependents with `blockOwnerDeletion` are deleted before the object.
    Foreground,
}

impl Propagation {
    /// Returns the value of `propagationPolicy`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        }
    }
}

/// The validated options of a delete.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    pub(super) dry_run: bool,
    pub(super) grace_period_seconds: Option<i64>,
    pub(super) propagation: Option<Propagation>,
    /// The predecessor of `propagation`, deprecated in Kubernetes 1.7. With `false`, the response is a 202 while
    /// finalizers delay the removal.
    pub(super) orphan_dependents: Option<bool>,
    /// Precondition: the UID of the object.
    pub(super) uid: Option<String>,
    /// Precondition: the resource version of the object.
    pub(super) resource_version: Option<String>,
}

impl DeleteOptions {
    /// Returns options with which the garbage collector deletes the dependents after the object.
    pub(super) fn background() -> Self {
        DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() }
    }

    /// Parses the options of a delete from the body, or from the query if the body is empty
    /// (`Convert_url_Values_To_v1_DeleteOptions`).
    ///
    /// # Errors
    /// 400 when the body is not a `DeleteOptions`, 422 that lists each invalid option.
    pub(super) fn parse(query: &Query<'_>, content_type: Option<&str>, body: &[u8]) -> Result<Self, Status> {
        if body.is_empty() {
            let options = WriteOptions::from_query(query)?;
            let precondition = |name: &str| query.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
            return Self::check(&options, precondition("uid"), precondition("resourceVersion"));
        }
        // `DeleteOptions` is a built-in kind, even in a request for a custom resource.
        let document = decode::read(Served::BUILTIN, content_type, body).map_err(|unreadable| match unreadable {
            Unreadable::MediaType(status) => *status,
            Unreadable::Syntax(why) => Status::bad_request(why),
        })?;
        Self::from_value(&document.value)
    }

    /// Reads the options from a parsed `DeleteOptions`, such as the one in an Eviction.
    ///
    /// # Errors
    /// 400 when the value is not a `DeleteOptions`, 422 that lists each invalid option.
    pub(super) fn from_value(value: &Value) -> Result<Self, Status> {
        let cannot = |value: &Value, field: &str, wanted: &str| {
            let found = go::json_kind(value);
            Status::bad_request(format!(
                "json: cannot unmarshal {found} into Go struct field DeleteOptions.{field} of type {wanted}"
            ))
        };
        let empty = Map::new();
        let body = match value {
            Value::Object(body) => body,
            Value::Null => &empty,
            other => {
                let found = go::json_kind(other);
                return Err(Status::bad_request(format!(
                    "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go value of type {}",
                    decode::TYPE_META
                )));
            }
        };
        let kind = object_meta::text(body, "kind");
        if !matches!(kind, "" | "DeleteOptions") {
            let version = object_meta::text(body, "apiVersion");
            return Err(Status::bad_request(format!("no kind {kind:?} is registered for version {version:?}")));
        }
        let text = |map: &Map, at: &str, name: &str| match map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(String::from(text))),
            Some(other) => Err(cannot(other, &format!("{at}{name}"), "string")),
        };
        let grace_period_seconds = match body.get("gracePeriodSeconds") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_i64().ok_or_else(|| cannot(value, "gracePeriodSeconds", "int64"))?),
        };
        let orphan_dependents = match body.get("orphanDependents") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_bool().ok_or_else(|| cannot(value, "orphanDependents", "bool"))?),
        };
        let dry_run = match body.get("dryRun") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(values)) => values
                .iter()
                .map(|value| value.as_str().map(str::to_owned).ok_or_else(|| cannot(value, "dryRun", "string")))
                .collect::<Result<_, _>>()?,
            Some(other) => return Err(cannot(other, "dryRun", "[]string")),
        };
        let (uid, resource_version) = match body.get("preconditions") {
            None | Some(Value::Null) => (None, None),
            Some(Value::Object(preconditions)) => (
                text(preconditions, "preconditions.", "uid")?,
                text(preconditions, "preconditions.", "resourceVersion")?,
            ),
            Some(other) => return Err(cannot(other, "preconditions", "v1.Preconditions")),
        };
        let propagation_policy = text(body, "", "propagationPolicy")?;
        let options =
            WriteOptions { dry_run, grace_period_seconds, propagation_policy, orphan_dependents, ..Default::default() };
        Self::check(&options, uid, resource_version)
    }

    fn check(options: &WriteOptions, uid: Option<String>, resource_version: Option<String>) -> Result<Self, Status> {
        let mut errors = Vec::new();
        let policy = options.propagation_policy.as_deref();
        if policy.is_some() && options.orphan_dependents.is_some() {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid_text("propagationPolicy", policy.unwrap_or_default(), why));
        }
        let propagation = match policy {
            None => options
                .orphan_dependents
                .map(|orphan| if orphan { Propagation::Orphan } else { Propagation::Background }),
            Some("Orphan") => Some(Propagation::Orphan),
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some(other) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported("propagationPolicy", other, &supported));
                None
            }
        };
        errors.extend(dry_run_error(&options.dry_run));
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &errors));
        }
        Ok(DeleteOptions {
            dry_run: !options.dry_run.is_empty(),
            // As upstream, a negative grace period means 1 second.
            grace_period_seconds: options.grace_period_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds }),
            propagation,
            orphan_dependents: options.orphan_dependents,
            uid,
            resource_version,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: Result<Options, Status>, expected: Result<(bool, FieldValidation), &str>) {
        let found = options.map(|options| (options.dry_run, options.field_validation)).map_err(|status| status.message);
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[test]
    fn create_and_patch_options_reject_invalid_values() {
        let create = |query: &str| Options::parse("CreateOptions", &Query::parse(query));
        check(create(""), Ok((false, FieldValidation::Warn)));
        check(create("fieldManager=%22a%20%C3%A4%5C"), Ok((false, FieldValidation::Warn)));
        check(
            create("fieldManager=a%E2%80%8B"),
            Err(
                "CreateOptions.meta.k8s.io \"\" is invalid: fieldManager: Invalid value: \"a\\u200b\": invalid character U+200B (at position 1)",
            ),
        );
        check(create("dryRun=All&fieldValidation=Strict&fieldManager=me"), Ok((true, FieldValidation::Strict)));
        check(
            create("dryRun=x&fieldManager=%01&fieldValidation=Foo"),
            Err(
                "CreateOptions.meta.k8s.io \"\" is invalid: [fieldManager: Invalid value: \"\\x01\": invalid character U+0001 (at position 0), dryRun: Unsupported value: [\"x\"]: supported values: \"All\", fieldValidation: Unsupported value: \"Foo\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"]",
            ),
        );
        check(
            create(&format!("fieldManager={}", "a".repeat(129))),
            Err("CreateOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than 128 bytes"),
        );
        let patch = |patch_type, query: &str| Options::parse_patch(patch_type, &Query::parse(query));
        check(
            patch(PatchType::Merge, "force=true"),
            Err("PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"),
        );
        check(
            patch(PatchType::Apply, ""),
            Err("PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"),
        );
    }

    fn delete(query: &str, body: &str) -> Result<DeleteOptions, (u16, String)> {
        DeleteOptions::parse(&Query::parse(query), None, body.as_bytes())
            .map_err(|status| (status.code, status.message))
    }

    #[test]
    fn delete_options_in_the_body_override_those_in_the_query() {
        let options = delete("gracePeriodSeconds=-5&propagationPolicy=Orphan&dryRun=All", "").unwrap();
        assert_eq!((options.grace_period_seconds, options.propagation), (Some(1), Some(Propagation::Orphan)));
        assert!(options.dry_run);
        let body = r#"{"kind":"DeleteOptions","apiVersion":"apps/v1","preconditions":{"uid":"u","resourceVersion":"7"},"gracePeriodSeconds":0}"#;
        let options = delete("gracePeriodSeconds=9", body).unwrap();
        assert_eq!(options.grace_period_seconds, Some(0), "a body makes the query void");
        assert_eq!((options.uid.as_deref(), options.resource_version.as_deref()), (Some("u"), Some("7")));
        let options = delete("uid=x&resourceVersion=3", body).unwrap();
        assert_eq!((options.uid.as_deref(), options.resource_version.as_deref()), (Some("u"), Some("7")));
    }

    #[test]
    fn delete_options_in_the_query_include_preconditions() {
        let preconditions = |query: &str| {
            let options = delete(query, "").unwrap();
            (options.uid, options.resource_version)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(preconditions("uid=u&resourceVersion=7"), (text("u"), text("7")));
        assert_eq!(preconditions("uid=u&uid=v"), (text("u"), None));
        assert_eq!(preconditions("uid=&resourceVersion="), (None, None));
    }

    #[test]
    fn delete_options_reject_invalid_values() {
        let check = |query: &str, body: &str, code: u16, expected: &str| {
            assert_eq!(delete(query, body).unwrap_err(), (code, expected.to_owned()));
        };
        check(
            "propagationPolicy=Foo",
            "",
            422,
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Foo\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
        );
        check(
            "",
            r#"{"propagationPolicy":"Orphan","orphanDependents":true}"#,
            422,
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Orphan\": orphanDependents and deletionPropagation cannot be both set",
        );
        check("gracePeriodSeconds=abc", "", 400, "strconv.ParseInt: parsing \"abc\": invalid syntax");
        check(
            "",
            r#"{"gracePeriodSeconds":"x"}"#,
            400,
            "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64",
        );
        check("", r#"{"kind":"Foo","apiVersion":"v1"}"#, 400, "no kind \"Foo\" is registered for version \"v1\"");
        assert_eq!(delete("", "{bad").unwrap_err().0, 400);
    }
}
