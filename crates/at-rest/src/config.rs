//! Parses and validates `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`.
//!
//! Source: `pkg/apis/apiserver/v1/types_encryption.go`, `pkg/apis/apiserver/validation/validation_encryption.go` and
//! `pkg/server/options/encryptionconfig/config.go` of k8s.io/apiserver (v1.36). As there, decoding is strict: unknown
//! fields are errors.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use listwatch_json::{Map, Value};
use listwatch_meta::{FieldError, go};
use zeroize::Zeroizing;

use crate::error::ConfigError;

/// The largest size of a configuration file, in bytes. A larger one is refused at the start.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;

/// The largest number of keys in a configuration. With more keys, the server does not start. The bound limits the work
/// per read, which tries each key of the name in the envelope.
pub const KEYS_MAX: usize = 1_000;

const API_VERSION: &str = "apiserver.config.k8s.io/v1";
const KIND: &str = "EncryptionConfiguration";

/// Decodes like Go's `base64.StdEncoding`, which ignores leftover bits of the last character.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// A rule: some resources and their providers.
pub(crate) struct Rule {
    pub(crate) resources: Vec<GroupResource>,
    pub(crate) providers: Vec<Provider>,
}

/// A resource of a rule; both parts may be `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupResource {
    pub(crate) group: String,
    pub(crate) resource: String,
}

impl GroupResource {
    /// Parses `resource` or `resource.group` (apimachinery `schema.ParseGroupResource`).
    pub(crate) fn parse(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        GroupResource { group: group.to_owned(), resource: resource.to_owned() }
    }

    /// Formats the resource as in a configuration.
    pub(crate) fn to_yaml(&self) -> String {
        match (self.group.as_str(), self.resource.as_str()) {
            ("", "*") => "*.".to_owned(),
            ("", resource) => resource.to_owned(),
            (group, resource) => format!("{resource}.{group}"),
        }
    }
}

/// A provider with its keys.
pub(crate) enum Provider {
    Identity,
    AesCbc(Vec<Key>),
    AesGcm(Vec<Key>),
    Secretbox(Vec<Key>),
}

/// A named key.
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) secret: Zeroizing<Vec<u8>>,
}

/// Parses a configuration file, in YAML or JSON. `file` is its name in errors.
pub(crate) fn parse(file: &str, text: &[u8]) -> Result<Vec<Rule>, ConfigError> {
    if text.is_empty() {
        return Err(ConfigError::Empty { file: file.to_owned() });
    }
    if text.len() > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooLarge { file: file.to_owned(), bytes: text.len() });
    }
    let undecodable = |why: String| ConfigError::Undecodable { file: file.to_owned(), why };
    // The YAML value rejects a key that occurs twice.
    let value: yaml_serde::Value = yaml_serde::from_slice(text).map_err(|error| undecodable(error.to_string()))?;
    let value = listwatch_json::to_value(value).map_err(|error| undecodable(error.to_string()))?;
    let mut decoder = Decoder::default();
    let rules = decoder.configuration(&value).map_err(undecodable)?;
    if !decoder.unknown.is_empty() {
        return Err(undecodable(format!("strict decoding error: {}", decoder.unknown.join(", "))));
    }
    let errors = validate(&rules);
    if !errors.is_empty() {
        return Err(ConfigError::Invalid(errors));
    }
    build(rules)
}

/// A rule as decoded, before validation.
struct RawRule {
    resources: Vec<String>,
    providers: Vec<RawProvider>,
}

#[derive(Default)]
struct RawProvider {
    aesgcm: Option<Vec<RawKey>>,
    aescbc: Option<Vec<RawKey>>,
    secretbox: Option<Vec<RawKey>>,
    identity: bool,
    kms: Option<RawKms>,
}

struct RawKey {
    name: String,
    secret: Zeroizing<String>,
}

struct RawKms {
    name: String,
    version: String,
}

/// Decodes the tree of a file. Errors have Go's text, except for the parts that name Go's types.
#[derive(Default)]
struct Decoder {
    /// The errors `unknown field "…"`, in the order of the file.
    unknown: Vec<String>,
}

impl Decoder {
    fn configuration(&mut self, value: &Value) -> Result<Vec<RawRule>, String> {
        let root = value.as_object().ok_or_else(|| format!("a mapping is expected, not {}", go::json_kind(value)))?;
        let text = |name: &str| root.get(name).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if kind.is_empty() {
            return Err("Object 'Kind' is missing in the configuration".to_owned());
        }
        if api_version.is_empty() {
            return Err("Object 'apiVersion' is missing in the configuration".to_owned());
        }
        if (api_version, kind) != (API_VERSION, KIND) {
            return Err(format!(
                "no kind {kind:?} is registered for version {api_version:?}; a {KIND} of {API_VERSION:?} is expected"
            ));
        }
        self.check_names(root, &["apiVersion", "kind", "resources"], "");
        list(root, "resources", "", |rule, path| self.rule(rule, path))
    }

    fn rule(&mut self, value: &Value, path: &str) -> Result<RawRule, String> {
        let Some(rule) = object(value, path)? else { return Ok(RawRule { resources: vec![], providers: vec![] }) };
        self.check_names(rule, &["resources", "providers"], path);
        let resources = list(rule, "resources", path, string)?;
        let providers = list(rule, "providers", path, |provider, path| self.provider(provider, path))?;
        Ok(RawRule { resources, providers })
    }

    fn provider(&mut self, value: &Value, path: &str) -> Result<RawProvider, String> {
        let mut provider = RawProvider::default();
        let Some(members) = object(value, path)? else { return Ok(provider) };
        self.check_names(members, &["aesgcm", "aescbc", "secretbox", "identity", "kms"], path);
        for (name, value) in members {
            let path = child(path, name);
            let Some(value) = object(value, &path)? else { continue };
            match name.as_str() {
                "aesgcm" => provider.aesgcm = Some(self.keys(value, &path)?),
                "aescbc" => provider.aescbc = Some(self.keys(value, &path)?),
                "secretbox" => provider.secretbox = Some(self.keys(value, &path)?),
                "identity" => {
                    self.check_names(value, &[], &path);
                    provider.identity = true;
                }
                "kms" => {
                    self.check_names(value, &["apiVersion", "name", "cachesize", "endpoint", "timeout"], &path);
                    let text = |name: &str| string(value.get(name).unwrap_or(&Value::Null), &child(&path, name));
                    provider.kms = Some(RawKms { name: text("name")?, version: text("apiVersion")? });
                }
                _ => {}
            }
        }
        Ok(provider)
    }

    fn keys(&mut self, provider: &Map, path: &str) -> Result<Vec<RawKey>, String> {
        self.check_names(provider, &["keys"], path);
        list(provider, "keys", path, |key, path| {
            let Some(key) = object(key, path)? else {
                return Ok(RawKey { name: String::new(), secret: Zeroizing::default() });
            };
            self.check_names(key, &["name", "secret"], path);
            let text = |name: &str| string(key.get(name).unwrap_or(&Value::Null), &child(path, name));
            Ok(RawKey { name: text("name")?, secret: text("secret")?.into() })
        })
    }

    fn check_names(&mut self, members: &Map, known: &[&str], path: &str) {
        for name in members.keys().filter(|name| !known.contains(&name.as_str())) {
            self.unknown.push(format!("unknown field {}", go::quote(&child(path, name))));
        }
    }
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns the members of an object; `None` for null.
fn object<'a>(value: &'a Value, path: &str) -> Result<Option<&'a Map>, String> {
    match value {
        Value::Object(members) => Ok(Some(members)),
        Value::Null => Ok(None),
        // The value may be a secret, so only its kind is named.
        other => Err(format!("{path}: a mapping is expected, not {}", go::json_kind(other))),
    }
}

fn string(value: &Value, path: &str) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(String::from(text)),
        Value::Null => Ok(String::new()),
        other => Err(format!("{path}: a string is expected, not {}", go::json_kind(other))),
    }
}

fn list<T>(
    members: &Map,
    name: &str,
    path: &str,
    mut element: impl FnMut(&Value, &str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let path = child(path, name);
    match members.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => {
            items.iter().enumerate().map(|(at, item)| element(item, &format!("{path}[{at}]"))).collect()
        }
        Some(other) => Err(format!("{path}: a list is expected, not {}", go::json_kind(other))),
    }
}

fn validate(rules: &[RawRule]) -> Vec<FieldError> {
    if rules.is_empty() {
        return vec![FieldError::required("resources", "at least one resources is required")];
    }
    let mut errors = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let resources = format!("resources[{at}].resources");
        let providers = format!("resources[{at}].providers");
        if rule.resources.is_empty() {
            errors.push(FieldError::required(&resources, format_args!("at least one {resources} is required")));
        }
        validate_overlap(&rule.resources, &resources, &mut errors);
        for (at, resource) in rule.resources.iter().enumerate() {
            if let Some(why) = resource_problem(resource) {
                errors.push(FieldError::invalid_text(format!("{resources}[{at}]"), resource, why));
            }
        }
        if rule.providers.is_empty() {
            errors.push(FieldError::required(&providers, format_args!("at least one {providers} is required")));
        }
        for (at, provider) in rule.providers.iter().enumerate() {
            validate_provider(provider, &format!("{providers}[{at}]"), &mut errors);
        }
    }
    errors
}

fn validate_overlap(resources: &[String], path: &str, errors: &mut Vec<FieldError>) {
    let parsed: Vec<GroupResource> = resources.iter().map(|resource| GroupResource::parse(resource)).collect();
    let mut pairs = Vec::new();
    for (at, one) in parsed.iter().enumerate() {
        pairs.extend(parsed[at + 1..].iter().map(|other| (one, other)));
    }
    let is_all = |resource: &GroupResource| resource.group == "*" && resource.resource == "*";
    let has_duplicate = pairs.iter().any(|(one, other)| one == other);
    let has_overlap = pairs.iter().any(|(one, other)| {
        let has_star = one.resource == "*" || other.resource == "*";
        is_all(one) || is_all(other) || one.group == other.group && has_star
    });
    let value = go::json(&Value::from(resources.to_vec()));
    if has_duplicate {
        let why = "the same resource cannot be specified multiple times";
        errors.push(FieldError::invalid(path, &value, why));
    }
    if has_overlap {
        let why = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they \
                   will be masked";
        errors.push(FieldError::invalid(path, &value, why));
    }
}

fn resource_problem(text: &str) -> Option<&'static str> {
    if text.to_lowercase() != text {
        return Some("resource name should not contain capital letters");
    }
    if text == "*" {
        return Some("use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources");
    }
    if ["apiserveripinfo", "serviceipallocations", "servicenodeportallocations"].contains(&text) {
        return Some("resources which do not have REST API/s cannot be encrypted");
    }
    let parsed = GroupResource::parse(text);
    match parsed.group.as_str() {
        "events.k8s.io" => Some(
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the \
             config file",
        ),
        "extensions" => Some("'extensions' group has been removed and cannot be used for encryption"),
        "*" if parsed.resource != "*" => Some("encrypting the same resource across groups is not supported"),
        _ => None,
    }
}

fn validate_provider(provider: &RawProvider, path: &str, errors: &mut Vec<FieldError>) {
    let found = usize::from(provider.aesgcm.is_some())
        + usize::from(provider.aescbc.is_some())
        + usize::from(provider.secretbox.is_some())
        + usize::from(provider.identity)
        + usize::from(provider.kms.is_some());
    // Upstream prints the provider, which may contain secrets.
    if found == 0 {
        let why = "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity";
        errors.push(FieldError::invalid_text(path, "REDACTED", why));
    }
    if found > 1 {
        let why = "more than one provider specified in a single element, should split into different list elements";
        errors.push(FieldError::invalid_text(path, "REDACTED", why));
    }
    if provider.kms.is_some() {
        return;
    }
    if let Some(keys) = &provider.aesgcm {
        validate_keys(keys, &format!("{path}.aesgcm.keys"), &[16, 24, 32], errors);
    } else if let Some(keys) = &provider.aescbc {
        validate_keys(keys, &format!("{path}.aescbc.keys"), &[16, 24, 32], errors);
    } else if let Some(keys) = &provider.secretbox {
        validate_keys(keys, &format!("{path}.secretbox.keys"), &[32], errors);
    }
}

fn validate_keys(keys: &[RawKey], path: &str, lengths: &[usize], errors: &mut Vec<FieldError>) {
    if keys.is_empty() {
        errors.push(FieldError::required(path, "at least one keys is required"));
    }
    for (at, key) in keys.iter().enumerate() {
        let path = format!("{path}[{at}]");
        if key.name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), "name is a mandatory field for a key"));
        }
        let path = format!("{path}.secret");
        if key.secret.is_empty() {
            errors.push(FieldError::required(path, "secret is a mandatory field for a key"));
            continue;
        }
        match secret(&key.secret) {
            None => errors.push(FieldError::invalid_text(path, "REDACTED", "secrets must be base64 encoded")),
            Some(secret) if !lengths.contains(&secret.len()) => {
                let expected: Vec<String> = lengths.iter().map(usize::to_string).collect();
                let (found, expected) = (secret.len(), expected.join(" "));
                let why = format!("secret is not of the expected length, got {found}, expected one of [{expected}]");
                errors.push(FieldError::invalid_text(path, "REDACTED", why));
            }
            Some(_) => {}
        }
    }
}

/// Decodes a secret. As in Go, line breaks are ignored.
fn secret(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let text: Zeroizing<String> = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect::<String>().into();
    BASE64.decode(text.as_bytes()).ok().map(Zeroizing::new)
}

/// Converts valid rules, and refuses those that this server cannot apply.
fn build(rules: Vec<RawRule>) -> Result<Vec<Rule>, ConfigError> {
    let mut count = 0;
    let mut built = Vec::with_capacity(rules.len());
    for (at, rule) in rules.into_iter().enumerate() {
        let mut providers = Vec::with_capacity(rule.providers.len());
        for (position, provider) in rule.providers.into_iter().enumerate() {
            let keys = |keys: Vec<RawKey>| {
                let decoded = keys.into_iter().map(|key| match secret(&key.secret) {
                    Some(secret) => Ok(Key { secret, name: key.name }),
                    None => Err(ConfigError::UnusableKey { name: key.name }),
                });
                decoded.collect::<Result<Vec<Key>, ConfigError>>()
            };
            let provider = match provider {
                RawProvider { kms: Some(kms), .. } => {
                    let field = format!("resources[{at}].providers[{position}].kms");
                    // Upstream's default is v1.
                    let version = if kms.version.is_empty() { "v1".to_owned() } else { kms.version };
                    return Err(ConfigError::Kms { field, name: kms.name, version });
                }
                RawProvider { aesgcm: Some(given), .. } => Provider::AesGcm(keys(given)?),
                RawProvider { aescbc: Some(given), .. } => Provider::AesCbc(keys(given)?),
                RawProvider { secretbox: Some(given), .. } => Provider::Secretbox(keys(given)?),
                RawProvider { .. } => Provider::Identity,
            };
            count += match &provider {
                Provider::Identity => 0,
                Provider::AesCbc(keys) | Provider::AesGcm(keys) | Provider::Secretbox(keys) => keys.len(),
            };
            providers.push(provider);
        }
        let resources = rule.resources.iter().map(|resource| GroupResource::parse(resource)).collect();
        built.push(Rule { resources, providers });
    }
    if count > KEYS_MAX { Err(ConfigError::TooManyKeys { keys: count }) } else { Ok(built) }
}
