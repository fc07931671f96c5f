//! [`AuthorizationConfiguration`]: the file of `--authorization-config`, and its validation
//! (`apiserver/pkg/apis/apiserver/validation/validation.go`, `pkg/kubeapiserver/authorizer/reload.go`).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use listwatch_meta::go::quote;
use listwatch_meta::selector::dns_subdomain_problems;
use listwatch_meta::status::FieldError;
use serde::Deserialize;

use crate::webhook::{AuthorizationWebhookOptions, FailurePolicy, MatchConditions, ReviewVersion};

/// The largest file, in bytes.
pub(crate) const CONFIG_BYTES_MAX: usize = 1 << 20;

const API_VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];

/// The types of authorizers, sorted.
const TYPES: [&str; 6] = ["ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", WEBHOOK];

/// The only type that a file may have several times.
const WEBHOOK: &str = "Webhook";

/// The longest `timeout` of a webhook.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// The error of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAuthorizationConfiguration(String);

/// The authorizers of a file, in the order in which they decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationConfiguration {
    /// The authorizers.
    pub authorizers: Vec<ConfiguredAuthorizer>,
}

/// An authorizer of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfiguredAuthorizer {
    /// An authorizer of this type: `ABAC`, `AlwaysAllow`, `AlwaysDeny`, `Node` or `RBAC`.
    Mode(&'static str),
    /// A webhook.
    Webhook {
        /// The kubeconfig of the webhook, an absolute path.
        kubeconfig: PathBuf,
        /// The options of the calls.
        options: Box<AuthorizationWebhookOptions>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    authorizers: Option<Vec<AuthorizerFile>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct AuthorizerFile {
    #[serde(rename = "type")]
    kind: String,
    name: String,
    webhook: Option<WebhookFile>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct WebhookFile {
    #[serde(rename = "authorizedTTL")]
    authorized_ttl: String,
    cache_authorized_requests: Option<bool>,
    #[serde(rename = "unauthorizedTTL")]
    unauthorized_ttl: String,
    cache_unauthorized_requests: Option<bool>,
    timeout: String,
    subject_access_review_version: String,
    match_condition_subject_access_review_version: String,
    failure_policy: String,
    connection_info: ConnectionFile,
    match_conditions: Option<Vec<ConditionFile>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ConnectionFile {
    #[serde(rename = "type")]
    kind: String,
    kube_config_file: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionFile {
    #[serde(default)]
    expression: String,
}

impl AuthorizationConfiguration {
    /// Reads a file in YAML or JSON. `parse_duration` parses a Go duration such as `5m` and returns nanoseconds. The
    /// kubeconfig files of webhooks are not read.
    ///
    /// # Errors
    /// [`InvalidAuthorizationConfiguration`] with the paths of the invalid fields.
    pub fn parse(
        text: &str,
        parse_duration: impl Fn(&str) -> Option<i64>,
    ) -> Result<Self, InvalidAuthorizationConfiguration> {
        let invalid = |text: String| Err(InvalidAuthorizationConfiguration(text));
        if text.len() > CONFIG_BYTES_MAX {
            return invalid(format!("the file has more than {CONFIG_BYTES_MAX} bytes"));
        }
        let file: File = match yaml_serde::from_str(text) {
            Ok(file) => file,
            Err(error) => return invalid(error.to_string()),
        };
        if file.kind != "AuthorizationConfiguration" || !API_VERSIONS.contains(&file.api_version.as_str()) {
            return invalid(format!(
                "{} of {} is not an AuthorizationConfiguration of {}",
                file.kind,
                quote(&file.api_version),
                API_VERSIONS[0]
            ));
        }
        let mut reader = Reader { parse_duration, errors: Vec::new() };
        let files = file.authorizers.unwrap_or_default();
        if files.is_empty() {
            reader.errors.push(FieldError::required("authorizers", "at least one authorization mode must be defined"));
        }
        let (mut types, mut names, mut authorizers) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut wrong_names = Vec::new();
        for (at, file) in files.into_iter().enumerate() {
            let path = format!("authorizers[{at}]");
            let Some(kind) = reader.kind(&path, &file.kind, &mut types) else { continue };
            reader.name(&path, &file.name, &mut names);
            let expected = kind.to_lowercase();
            if kind != WEBHOOK && file.name != expected {
                wrong_names.push(format!("expected name {expected} for authorizer {kind} instead of {}", file.name));
            }
            match (kind, file.webhook) {
                (WEBHOOK, Some(webhook)) => authorizers.extend(reader.webhook(&path, webhook)),
                (WEBHOOK, None) => {
                    reader.errors.push(FieldError::required(format!("{path}.webhook"), "required when type=Webhook"))
                }
                (_, Some(_)) => reader.errors.push(FieldError::invalid_text(
                    format!("{path}.webhook"),
                    "non-null",
                    "may only be specified when type=Webhook",
                )),
                (kind, None) => authorizers.push(ConfiguredAuthorizer::Mode(kind)),
            }
        }
        let errors: Vec<String> = match reader.errors.as_slice() {
            // The names are compared with valid types only.
            [] => wrong_names,
            errors => errors.iter().map(ToString::to_string).collect(),
        };
        match errors.as_slice() {
            [] => Ok(AuthorizationConfiguration { authorizers }),
            [one] => invalid(one.clone()),
            several => invalid(format!("[{}]", several.join(", "))),
        }
    }
}

/// Reads the parts of a file, and collects the errors.
struct Reader<D> {
    parse_duration: D,
    errors: Vec<FieldError>,
}

impl<D: Fn(&str) -> Option<i64>> Reader<D> {
    /// Validates the type of an authorizer. Returns `None` after an error.
    fn kind(&mut self, path: &str, kind: &str, seen: &mut BTreeSet<&'static str>) -> Option<&'static str> {
        let path = format!("{path}.type");
        let error = if kind.is_empty() {
            FieldError::required(path, "")
        } else {
            match TYPES.iter().find(|known| **known == kind) {
                None => FieldError::not_supported(path, kind, &TYPES),
                Some(known) if !seen.insert(known) && *known != WEBHOOK => FieldError::duplicate(path, quote(kind)),
                Some(known) => return Some(known),
            }
        };
        self.errors.push(error);
        None
    }

    fn name(&mut self, path: &str, name: &str, seen: &mut BTreeSet<String>) {
        let path = format!("{path}.name");
        let problems = dns_subdomain_problems(name);
        if name.is_empty() {
            self.errors.push(FieldError::required(path, ""));
        } else if !seen.insert(name.to_owned()) {
            self.errors.push(FieldError::duplicate(path, quote(name)));
        } else if !problems.is_empty() {
            let why = format!("authorizer name is invalid: {}", problems.join(", "));
            self.errors.push(FieldError::invalid_text(path, name, why));
        }
    }

    /// Validates the webhook of an authorizer. Returns `None` after an error.
    fn webhook(&mut self, path: &str, file: WebhookFile) -> Option<ConfiguredAuthorizer> {
        let errors = self.errors.len();
        let child = |name: &str| format!("{path}.{name}");
        let timeout = self.duration(&child("timeout"), &file.timeout, None, Some(TIMEOUT_MAX));
        let of_ttl = |keep: Option<bool>, ttl: Duration| if keep == Some(false) { Duration::ZERO } else { ttl };
        let defaults = AuthorizationWebhookOptions::default();
        let allowed_for =
            self.duration(&child("authorizedTTL"), &file.authorized_ttl, Some(defaults.allowed_for), None);
        let refused_for =
            self.duration(&child("unauthorizedTTL"), &file.unauthorized_ttl, Some(defaults.refused_for), None);
        let version = match file.subject_access_review_version.as_str() {
            "v1" => ReviewVersion::V1,
            "v1beta1" => ReviewVersion::V1Beta1,
            other => {
                self.not_one_of(&child("subjectAccessReviewVersion"), other, &["v1", "v1beta1"]);
                ReviewVersion::V1
            }
        };
        let conditions = file.match_conditions.unwrap_or_default();
        match file.match_condition_subject_access_review_version.as_str() {
            "v1" => {}
            "" if conditions.is_empty() => {}
            "" => self.errors.push(FieldError::required(
                child("matchConditionSubjectAccessReviewVersion"),
                "required if match conditions are specified",
            )),
            other => self.not_one_of(&child("matchConditionSubjectAccessReviewVersion"), other, &["v1"]),
        }
        let failure_policy = match file.failure_policy.as_str() {
            "NoOpinion" => FailurePolicy::NoOpinion,
            "Deny" => FailurePolicy::Deny,
            other => {
                self.not_one_of(&child("failurePolicy"), other, &["NoOpinion", "Deny"]);
                FailurePolicy::Deny
            }
        };
        let kubeconfig = self.kubeconfig(&child("connectionInfo"), file.connection_info);
        let sources = conditions.iter().map(|condition| condition.expression.as_str());
        let conditions = MatchConditions::compile(path, sources).unwrap_or_else(|errors| {
            self.errors.extend(errors);
            MatchConditions::default()
        });
        let options = AuthorizationWebhookOptions {
            version,
            allowed_for: of_ttl(file.cache_authorized_requests, allowed_for),
            refused_for: of_ttl(file.cache_unauthorized_requests, refused_for),
            timeout,
            failure_policy,
            conditions,
        };
        (self.errors.len() == errors).then(|| ConfiguredAuthorizer::Webhook { kubeconfig, options: Box::new(options) })
    }

    /// Parses a duration. Returns the default for an absent duration and for zero.
    fn duration(&mut self, path: &str, text: &str, default: Option<Duration>, max: Option<Duration>) -> Duration {
        let nanos = if text.is_empty() { Some(0) } else { (self.parse_duration)(text) };
        let must = if max.is_some() { "must be > 0s and <= 30s" } else { "must be > 0s" };
        let error = match (nanos, default) {
            (None, _) => FieldError::invalid_text(path, text, "not a duration"),
            (Some(0), Some(default)) => return default,
            (Some(0), None) => FieldError::required(path, ""),
            (Some(nanos), _) => match u64::try_from(nanos).map(Duration::from_nanos) {
                Ok(duration) if max.is_none_or(|max| duration <= max) => return duration,
                _ => FieldError::invalid_text(path, text, must),
            },
        };
        self.errors.push(error);
        Duration::ZERO
    }

    fn not_one_of(&mut self, path: &str, found: &str, supported: &[&str]) {
        self.errors.push(match found {
            "" => FieldError::required(path, ""),
            found => FieldError::not_supported(path, found, supported),
        });
    }

    fn kubeconfig(&mut self, path: &str, file: ConnectionFile) -> PathBuf {
        let (kind, file_path) = (format!("{path}.type"), format!("{path}.kubeConfigFile"));
        let given = file.kube_config_file.unwrap_or_default();
        let error = match (file.kind.as_str(), given.as_str()) {
            ("KubeConfigFile", "") => FieldError::required(file_path, ""),
            ("KubeConfigFile", given) if !given.starts_with('/') => {
                FieldError::invalid_text(file_path, given, "must be an absolute path")
            }
            ("KubeConfigFile", given) => return PathBuf::from(given),
            ("", _) => FieldError::required(kind, ""),
            // The server would ask itself.
            ("InClusterConfig", _) => FieldError::forbidden(kind, "InClusterConfig is not allowed in an API server"),
            (other, _) => FieldError::not_supported(kind, other, &["InClusterConfig", "KubeConfigFile"]),
        };
        self.errors.push(error);
        PathBuf::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";

    /// Durations of the tests.
    fn duration(text: &str) -> Option<i64> {
        let seconds: i64 = text.strip_suffix('s')?.parse().ok()?;
        Some(seconds * 1_000_000_000)
    }

    fn parse(authorizers: &str) -> Result<AuthorizationConfiguration, String> {
        let text = format!("{HEAD}authorizers:\n{authorizers}");
        AuthorizationConfiguration::parse(&text, duration).map_err(|error| error.to_string())
    }

    /// A webhook with these changes of its lines.
    fn webhook(changes: &[(&str, &str)]) -> String {
        let mut fields = vec![
            ("timeout", "3s"),
            ("subjectAccessReviewVersion", "v1"),
            ("matchConditionSubjectAccessReviewVersion", "v1"),
            ("failurePolicy", "NoOpinion"),
            ("connectionInfo", "{type: KubeConfigFile, kubeConfigFile: /w}"),
        ];
        for (name, value) in changes {
            fields.retain(|(found, _)| found != name);
            fields.push((name, value));
        }
        let fields = fields.iter().filter(|(_, value)| !value.is_empty());
        let fields: Vec<String> = fields.map(|(name, value)| format!("{name}: {value}")).collect();
        format!("- {{type: Webhook, name: w, webhook: {{{}}}}}\n", fields.join(", "))
    }

    #[test]
    fn authorizers_of_a_file_are_read_in_their_order() {
        let more = "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n";
        let conditions = "[{expression: \"request.user == 'a'\"}]";
        let file = webhook(&[("matchConditions", conditions), ("authorizedTTL", "7s"), ("failurePolicy", "Deny")])
            + &webhook(&[("cacheAuthorizedRequests", "false"), ("unauthorizedTTL", "0s")])
                .replace("name: w", "name: x")
            + more;
        let found = parse(&file).unwrap().authorizers;
        let options = |at: usize| match &found[at] {
            ConfiguredAuthorizer::Webhook { kubeconfig, options } => {
                assert_eq!(kubeconfig, &PathBuf::from("/w"));
                (**options).clone()
            }
            other => panic!("{other:?}"),
        };
        let defaults = AuthorizationWebhookOptions { version: ReviewVersion::V1, ..Default::default() };
        let timeout = Duration::from_secs(3);
        let expected = AuthorizationWebhookOptions {
            allowed_for: Duration::from_secs(7),
            failure_policy: FailurePolicy::Deny,
            conditions: MatchConditions::compile("", ["request.user == 'a'"]).unwrap(),
            timeout,
            ..defaults.clone()
        };
        assert_eq!(options(0), expected);
        assert_eq!(options(1), AuthorizationWebhookOptions { allowed_for: Duration::ZERO, timeout, ..defaults });
        assert_eq!(found[2..], [ConfiguredAuthorizer::Mode("Node"), ConfiguredAuthorizer::Mode("RBAC")]);
    }

    #[test]
    fn invalid_authorizer_is_rejected_with_upstreams_text() {
        for (authorizers, expected) in [
            ("", "authorizers: Required value: at least one authorization mode must be defined"),
            ("- {name: a}", "authorizers[0].type: Required value"),
            (
                "- {type: rbac, name: rbac}",
                "authorizers[0].type: Unsupported value: \"rbac\": supported values: \"ABAC\", \"AlwaysAllow\", \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\"",
            ),
            ("- {type: RBAC, name: rbac}\n- {type: RBAC, name: b}", "authorizers[1].type: Duplicate value: \"RBAC\""),
            ("- {type: RBAC}", "authorizers[0].name: Required value"),
            (
                "- {type: RBAC, name: same}\n- {type: Node, name: same}",
                "authorizers[1].name: Duplicate value: \"same\"",
            ),
            ("- {type: RBAC, name: mine}", "expected name rbac for authorizer RBAC instead of mine"),
            (
                "- {type: RBAC, name: rbac, webhook: {}}",
                "authorizers[0].webhook: Invalid value: \"non-null\": may only be specified when type=Webhook",
            ),
            ("- {type: Webhook, name: w}", "authorizers[0].webhook: Required value: required when type=Webhook"),
        ] {
            assert_eq!(parse(authorizers), Err(expected.to_owned()), "{authorizers}");
        }
        let name = parse("- {type: Webhook, name: A_b, webhook: {}}").unwrap_err();
        let start =
            "[authorizers[0].name: Invalid value: \"A_b\": authorizer name is invalid: a lowercase RFC 1123 subdomain";
        assert!(name.starts_with(start), "{name}");
        for (text, expected) in [
            ("kind: AuthorizationConfiguration", "AuthorizationConfiguration of \"\" is not"),
            ("apiVersion: apiserver.config.k8s.io/v1\nkind: Other", "Other of \"apiserver.config.k8s.io/v1\" is not"),
            (&*format!("{HEAD}authorisers: []"), "unknown field `authorisers`"),
            ("[", ""),
        ] {
            let error = AuthorizationConfiguration::parse(text, duration).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let long = format!("{HEAD}#{}", " ".repeat(CONFIG_BYTES_MAX));
        assert!(AuthorizationConfiguration::parse(&long, duration).is_err());
    }

    #[test]
    fn invalid_webhook_is_rejected_with_upstreams_text() {
        for (change, expected) in [
            (("timeout", ""), "timeout: Required value"),
            (("timeout", "31s"), "timeout: Invalid value: \"31s\": must be > 0s and <= 30s"),
            (("timeout", "-1s"), "timeout: Invalid value: \"-1s\": must be > 0s and <= 30s"),
            (("timeout", "soon"), "timeout: Invalid value: \"soon\": not a duration"),
            (("authorizedTTL", "-1s"), "authorizedTTL: Invalid value: \"-1s\": must be > 0s"),
            (("unauthorizedTTL", "-1s"), "unauthorizedTTL: Invalid value: \"-1s\": must be > 0s"),
            (("subjectAccessReviewVersion", ""), "subjectAccessReviewVersion: Required value"),
            (
                ("subjectAccessReviewVersion", "v2"),
                "subjectAccessReviewVersion: Unsupported value: \"v2\": supported values: \"v1\", \"v1beta1\"",
            ),
            (
                ("matchConditionSubjectAccessReviewVersion", "v1beta1"),
                "matchConditionSubjectAccessReviewVersion: Unsupported value: \"v1beta1\": supported values: \"v1\"",
            ),
            (("failurePolicy", ""), "failurePolicy: Required value"),
            (
                ("failurePolicy", "Allow"),
                "failurePolicy: Unsupported value: \"Allow\": supported values: \"NoOpinion\", \"Deny\"",
            ),
            (("connectionInfo", ""), "connectionInfo.type: Required value"),
            (("connectionInfo", "{type: KubeConfigFile}"), "connectionInfo.kubeConfigFile: Required value"),
            (
                ("connectionInfo", "{type: KubeConfigFile, kubeConfigFile: w}"),
                "connectionInfo.kubeConfigFile: Invalid value: \"w\": must be an absolute path",
            ),
            (
                ("connectionInfo", "{type: InClusterConfig}"),
                "connectionInfo.type: Forbidden: InClusterConfig is not allowed in an API server",
            ),
            (
                ("connectionInfo", "{type: Socket}"),
                "connectionInfo.type: Unsupported value: \"Socket\": supported values: \"InClusterConfig\", \"KubeConfigFile\"",
            ),
            (("matchConditions", "[{expression: ' '}]"), "matchConditions[0].expression: Required value"),
        ] {
            assert_eq!(parse(&webhook(&[change])), Err(format!("authorizers[0].{expected}")), "{change:?}");
        }
        let conditions = ("matchConditions", "[{expression: 'true'}]");
        let missing = parse(&webhook(&[conditions, ("matchConditionSubjectAccessReviewVersion", "")]));
        let text = "authorizers[0].matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified";
        assert_eq!(missing, Err(text.to_owned()));
        let both = parse(&webhook(&[("timeout", ""), ("failurePolicy", "")]));
        let text = "[authorizers[0].timeout: Required value, authorizers[0].failurePolicy: Required value]";
        assert_eq!(both, Err(text.to_owned()));
    }
}
