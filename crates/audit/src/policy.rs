//! [`Policy`]: selects the requests that are recorded, and their level of detail (`audit/policy/checker.go`,
//! `apis/audit/validation/validation.go`).
//!
//! ```text
//!  rules, in order ──first that matches──▶ RequestSettings { level, omitted stages, managed fields }
//!        └──────────no rule matches──────▶ Level::None
//! ```

use std::fmt;

use listwatch_access::Attributes;
use listwatch_json::Value;
use listwatch_meta::go::quote;
use listwatch_meta::selector::validate_dns_subdomain;
use serde::Deserialize;

/// The versions of a policy file. The older ones have the same fields.
const API_VERSIONS: [&str; 3] = ["audit.k8s.io/v1", "audit.k8s.io/v1beta1", "audit.k8s.io/v1alpha1"];

/// The level of detail of events. A higher level includes the lower ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No event is recorded.
    #[default]
    None,
    /// The user, the time, the object's name and the status, but no bodies.
    Metadata,
    /// Also the object of the request.
    Request,
    /// Also the object of the response.
    RequestResponse,
}

impl Level {
    const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    /// The name in policies and events.
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// The moment of a request at which an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The user is authenticated; the request is not processed yet.
    RequestReceived,
    /// The response header of a long-running request, such as a watch, is ready.
    ResponseStarted,
    /// The response has ended.
    ResponseComplete,
    /// The handler panicked.
    Panic,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    /// The name in policies and events.
    pub fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSet(u8);

impl StageSet {
    /// Whether the set has the stage.
    pub fn contains(self, stage: Stage) -> bool {
        self.0 & stage.bit() != 0
    }

    fn union(self, other: StageSet) -> StageSet {
        StageSet(self.0 | other.0)
    }
}

impl FromIterator<Stage> for StageSet {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Self {
        StageSet(stages.into_iter().fold(0, |bits, stage| bits | stage.bit()))
    }
}

/// The settings of a policy for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSettings {
    /// The level of detail that is recorded.
    pub level: Level,
    /// The stages without an event.
    pub omit_stages: StageSet,
    /// Whether `metadata.managedFields` is removed from recorded objects.
    pub omit_managed_fields: bool,
}

/// The error of a policy file, with the text of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

/// The rules of a policy file.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<Rule>,
    warnings: Vec<String>,
}

#[derive(Clone, Debug)]
struct Rule {
    settings: RequestSettings,
    file: RuleFile,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyFile {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    rules: Option<Vec<RuleFile>>,
    #[serde(default)]
    omit_stages: Option<Vec<String>>,
    #[serde(default)]
    omit_managed_fields: bool,
}

const POLICY_FIELDS: &[&str] = &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuleFile {
    level: String,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

const RULE_FIELDS: &[&str] = &[
    "level",
    "users",
    "userGroups",
    "verbs",
    "resources",
    "namespaces",
    "nonResourceURLs",
    "omitStages",
    "omitManagedFields",
];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

const GROUP_RESOURCES_FIELDS: &[&str] = &["group", "resources", "resourceNames"];

impl Policy {
    /// Reads a policy in YAML or JSON.
    ///
    /// # Errors
    /// The file is not a Policy of `audit.k8s.io`, has no rules, or a rule is not valid.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let failed = |error: &dyn fmt::Display| PolicyError(format!("failed decoding: {error}"));
        let value: Value = yaml_serde::from_str(text).map_err(|error| failed(&error))?;
        let warnings = warnings(&value);
        let value = without_nulls(value);
        let file: PolicyFile = listwatch_json::from_value(value).map_err(|error| failed(&error))?;
        if file.kind != "Policy" || !API_VERSIONS.contains(&file.api_version.as_str()) {
            let (group, version) = file.api_version.split_once('/').unwrap_or(("", &file.api_version));
            return Err(PolicyError(format!(
                "unknown group version field {group}/{version}, Kind={} in policy",
                file.kind
            )));
        }
        let (of_policy, omit_managed_fields) = (file.omit_stages.unwrap_or_default(), file.omit_managed_fields);
        let rules = file.rules.unwrap_or_default();
        let mut errors = Vec::new();
        check_stages(&of_policy, "omitStages", &mut errors);
        for (at, rule) in rules.iter().enumerate() {
            rule.validate(&format!("rules[{at}]"), &mut errors);
        }
        match errors.as_slice() {
            [] => {}
            [one] => return Err(PolicyError(one.clone())),
            several => return Err(PolicyError(format!("[{}]", several.join(", ")))),
        }
        if rules.is_empty() {
            return Err(PolicyError("loaded illegal policy with 0 rules".to_owned()));
        }
        let rules = rules.into_iter().map(|file| Rule {
            settings: RequestSettings {
                level: level(&file.level).unwrap_or_default(),
                omit_stages: stages(&of_policy).union(stages(&file.omit_stages)),
                omit_managed_fields: file.omit_managed_fields.unwrap_or(omit_managed_fields),
            },
            file,
        });
        Ok(Policy { rules: rules.collect(), warnings })
    }

    /// Returns log messages for unknown fields and for a deprecated version.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Finds the settings of a request. The rules match the authenticated user, even if the request impersonates
    /// another user.
    pub fn settings(&self, attributes: &Attributes<'_>) -> RequestSettings {
        let rule = self.rules.iter().find(|rule| rule.file.matches(attributes));
        rule.map(|rule| rule.settings).unwrap_or_default()
    }
}

/// Removes fields that are null, because null means absent.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

fn level(name: &str) -> Option<Level> {
    Level::ALL.into_iter().find(|level| level.name() == name)
}

fn stages(names: &[String]) -> StageSet {
    Stage::ALL.into_iter().filter(|stage| names.iter().any(|name| name == stage.name())).collect()
}

fn warnings(file: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |value: &Value, fields: &[&str], path: &str| {
        for key in value.as_object().into_iter().flat_map(listwatch_json::Map::keys) {
            if !fields.contains(&key.as_str()) {
                found.push(format!("unknown field {}", quote(&format!("{path}{key}"))));
            }
        }
    };
    check(file, POLICY_FIELDS, "");
    for (at, rule) in file["rules"].as_array().into_iter().flatten().enumerate() {
        check(rule, RULE_FIELDS, &format!("rules[{at}]."));
        for (of, resources) in rule["resources"].as_array().into_iter().flatten().enumerate() {
            check(resources, GROUP_RESOURCES_FIELDS, &format!("rules[{at}].resources[{of}]."));
        }
    }
    if let Some(version) = file["apiVersion"].as_str().filter(|version| API_VERSIONS[1..].contains(version)) {
        found.push(format!("{version:?} is deprecated, use {:?} instead", API_VERSIONS[0]));
    }
    found
}

/// Validates omitted stages (`validateOmitStages`).
fn check_stages(stages: &[String], path: &str, errors: &mut Vec<String>) {
    for (at, stage) in stages.iter().enumerate() {
        if Stage::ALL.iter().all(|known| known.name() != stage) {
            let (stage, known) = (quote(stage), Stage::ALL.map(Stage::name).join(","));
            errors.push(format!("{path}[{at}]: Invalid value: {stage}: allowed stages are {known}"));
        }
    }
}

impl RuleFile {
    fn validate(&self, path: &str, errors: &mut Vec<String>) {
        if self.level.is_empty() {
            errors.push(format!("{path}.level: Required value"));
        } else if level(&self.level).is_none() {
            let levels = Level::ALL.map(|level| quote(level.name())).join(", ");
            errors.push(format!("{path}.level: Unsupported value: {}: supported values: {levels}", quote(&self.level)));
        }
        let mut invalid = |path: String, value: String, why: &str| {
            errors.push(format!("{path}: Invalid value: {value}: {why}"));
        };
        for (at, url) in self.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
            let path = || format!("{path}.nonResourceURLs[{at}]");
            if !url.starts_with('/') {
                invalid(path(), quote(url), "non-resource URL rules must begin with a '/' character");
            }
            if url.strip_suffix('*').unwrap_or(url).contains('*') {
                let why = "non-resource URL wildcards '*' must be the final character of the rule";
                invalid(path(), quote(url), why);
            }
        }
        for GroupResources { group, resources, resource_names } in &self.resources {
            // The empty group is the core group, `*` every group.
            if !matches!(group.as_str(), "" | "*")
                && let Err(why) = validate_dns_subdomain(group)
            {
                invalid(format!("{path}.resources.group"), quote(group), &why.to_string());
            }
            if !resource_names.is_empty() && resources.is_empty() {
                let why = "using resourceNames requires at least one resource";
                invalid(format!("{path}.resources.resourceNames"), list(resource_names), why);
            }
        }
        check_stages(&self.omit_stages, &format!("{path}.omitStages"), errors);
        if !self.non_resource_urls.is_empty() && (!self.resources.is_empty() || !self.namespaces.is_empty()) {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            let urls = list(&self.non_resource_urls);
            errors.push(format!("{path}.nonResourceURLs: Invalid value: {urls}: {why}"));
        }
    }

    /// Whether every given part of the rule matches (`ruleMatches`).
    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        let user = attributes.user;
        if !self.users.is_empty() && !self.users.contains(&user.username) {
            return false;
        }
        if !self.user_groups.is_empty() && !user.groups.iter().any(|group| self.user_groups.contains(group)) {
            return false;
        }
        if !self.verbs.is_empty() && !has(&self.verbs, attributes.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return attributes.is_resource_request && self.matches_resource(attributes);
        }
        if !self.non_resource_urls.is_empty() {
            return !attributes.is_resource_request
                && self.non_resource_urls.iter().any(|url| matches_path(url, attributes.path));
        }
        true
    }

    fn matches_resource(&self, attributes: &Attributes<'_>) -> bool {
        // An empty namespace stands for objects without one.
        if !self.namespaces.is_empty() && !has(&self.namespaces, attributes.namespace) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|resources| resources.matches(attributes))
    }
}

impl GroupResources {
    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        let Attributes { api_group, resource, subresource, name, .. } = *attributes;
        if self.group != api_group && self.group != "*" {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.resource_names.is_empty() && !has(&self.resource_names, name) {
            return false;
        }
        self.resources.iter().any(|pattern| match pattern.split_once('/') {
            None => pattern == "*" || (subresource.is_empty() && pattern == resource),
            Some(("*", of)) => !subresource.is_empty() && of == subresource,
            // `pods/*` also matches `pods`.
            Some((of, "*")) => of == resource,
            Some((of, sub)) => of == resource && sub == subresource && !subresource.is_empty(),
        })
    }
}

fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == text)
}

fn matches_path(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix.trim_end_matches('*')),
        None => pattern == path,
    }
}

/// Formats a list as kube-apiserver does in errors.
fn list(items: &[String]) -> String {
    serde_json::to_string(items).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use listwatch_meta::UserInfo;

    use super::*;

    fn policy(rules: &str) -> Policy {
        Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).expect("a valid policy")
    }

    /// Returns the level of a request in the form `user@group verb resource/subresource.group namespace/name`, or
    /// `user@group verb /path`.
    fn level_of(policy: &Policy, line: &str) -> &'static str {
        let [who, verb, what, at] = line.split(' ').chain(["", ""]).take(4).collect::<Vec<_>>()[..] else {
            panic!("four words: {line}")
        };
        let (username, group) = who.split_once('@').unwrap_or((who, ""));
        let user = UserInfo { username: username.to_owned(), groups: vec![group.to_owned()], ..UserInfo::default() };
        let attributes = match what.starts_with('/') {
            true => Attributes::path(&user, verb, what),
            false => {
                let (resource, api_group) = what.split_once('.').unwrap_or((what, ""));
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                let (namespace, name) = at.split_once('/').unwrap_or((at, ""));
                Attributes { subresource, namespace, name, ..Attributes::resource(&user, verb, api_group, resource) }
            }
        };
        policy.settings(&attributes).level.name()
    }

    #[test]
    fn first_matching_rule_decides_the_level() {
        let policy = policy(
            "rules:\n\
             - {level: None, users: [system:kube-proxy], verbs: [watch], resources: [{group: '', resources: [endpoints]}]}\n\
             - {level: None, userGroups: [system:nodes], verbs: [get], resources: [{resources: [nodes, nodes/status]}]}\n\
             - {level: None, nonResourceURLs: ['/healthz*', /version]}\n\
             - {level: Metadata, resources: [{resources: [secrets, configmaps]}, {group: authentication.k8s.io}]}\n\
             - {level: Metadata, namespaces: [kube-system, '']}\n\
             - {level: Request, resources: [{resources: ['pods/*'], resourceNames: [a]}]}\n\
             - {level: Request, resources: [{group: apps, resources: ['*/scale']}]}\n\
             - {level: RequestResponse, resources: [{group: apps, resources: ['*']}]}\n\
             - {level: Request, resources: [{group: '*', resources: [widgets]}]}\n\
             - {level: Metadata, verbs: [delete]}\n",
        );
        for (line, expected) in [
            ("system:kube-proxy watch endpoints a", "None"),
            ("system:kube-proxy list endpoints a", "None"),
            ("system:kube-proxy delete endpoints a", "Metadata"),
            ("n@system:nodes get nodes /n", "None"),
            ("n@system:nodes get nodes/status /n", "None"),
            ("n@system:nodes get nodes/proxy /n", "Metadata"),
            ("n@system:nodes update nodes /n", "Metadata"),
            ("u get /healthz", "None"),
            ("u get /healthz/ping", "None"),
            ("u get /version", "None"),
            ("u delete /version/x", "Metadata"),
            ("u get secrets a/b", "Metadata"),
            ("u get secrets/x a/b", "None"),
            ("u create tokenreviews.authentication.k8s.io", "Metadata"),
            ("u get pods kube-system/b", "Metadata"),
            ("u get pods a/a", "Request"),
            ("u get pods/log a/a", "Request"),
            ("u get pods/log a/b", "None"),
            ("u get deployments/scale.apps a/b", "Request"),
            ("u get deployments/status.apps a/b", "RequestResponse"),
            ("u get deployments.apps a/b", "RequestResponse"),
            ("u get deployments.extensions a/b", "None"),
            ("u get widgets.example.com a/b", "Request"),
            ("u delete /x", "Metadata"),
        ] {
            assert_eq!(level_of(&policy, line), expected, "{line}");
        }
    }

    #[test]
    fn rule_adds_omitted_stages_to_those_of_the_policy_and_overrides_omit_managed_fields() {
        let policy = policy(
            "omitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n\
             - {level: Metadata, users: [a], omitStages: [Panic], omitManagedFields: false}\n\
             - {level: Metadata}\n",
        );
        let settings = |name: &str| {
            let user = UserInfo { username: name.to_owned(), ..UserInfo::default() };
            let settings = policy.settings(&Attributes::path(&user, "get", "/"));
            let omitted: Vec<&str> =
                Stage::ALL.into_iter().filter(|stage| settings.omit_stages.contains(*stage)).map(Stage::name).collect();
            (omitted.join(","), settings.omit_managed_fields)
        };
        assert_eq!(settings("a"), ("RequestReceived,Panic".to_owned(), false));
        assert_eq!(settings("b"), ("RequestReceived".to_owned(), true));
    }

    #[test]
    fn invalid_policy_is_rejected_with_upstreams_text() {
        let error = |text: &str| Policy::parse(text).expect_err(text).to_string();
        let of_rules = |rules: &str| error(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}"));
        assert_eq!(error("apiVersion: audit.k8s.io/v1\nkind: Policy\n"), "loaded illegal policy with 0 rules");
        assert!(error("apiVersion: v1\nkind: Policy\nrules: []").starts_with("unknown group version field"));
        assert!(error("a: [").starts_with("failed decoding: "));
        assert!(of_rules("- {level: [a]}").starts_with("failed decoding: "));
        for (rule, expected) in [
            ("{users: [a]}", "rules[0].level: Required value"),
            (
                "{level: All}",
                "rules[0].level: Unsupported value: \"All\": supported values: \"None\", \"Metadata\", \"Request\", \"RequestResponse\"",
            ),
            (
                "{level: None, nonResourceURLs: [healthz]}",
                "rules[0].nonResourceURLs[0]: Invalid value: \"healthz\": non-resource URL rules must begin with a '/' character",
            ),
            (
                "{level: None, nonResourceURLs: ['/a*b']}",
                "rules[0].nonResourceURLs[0]: Invalid value: \"/a*b\": non-resource URL wildcards '*' must be the final character of the rule",
            ),
            (
                "{level: None, nonResourceURLs: [/a], namespaces: [b]}",
                "rules[0].nonResourceURLs: Invalid value: [\"/a\"]: rules cannot apply to both regular resources and non-resource URLs",
            ),
            (
                "{level: None, resources: [{resourceNames: [b]}]}",
                "rules[0].resources.resourceNames: Invalid value: [\"b\"]: using resourceNames requires at least one resource",
            ),
            (
                "{level: None, omitStages: [Sent]}",
                "rules[0].omitStages[0]: Invalid value: \"Sent\": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic",
            ),
        ] {
            assert_eq!(of_rules(&format!("- {rule}")), expected, "{rule}");
        }
        let allowed = "allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic";
        assert_eq!(
            error("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [Panic, Sent, '']\nrules: [{level: None}]"),
            format!(
                "[omitStages[1]: Invalid value: \"Sent\": {allowed}, omitStages[2]: Invalid value: \"\": {allowed}]"
            )
        );
        assert!(
            of_rules("- {level: None, resources: [{group: apps/v1}]}").contains("rules[0].resources.group: Invalid")
        );
        assert!(of_rules("- {}\n- {}").starts_with("[rules[0].level: Required value, rules[1]."), "errors are joined");
    }

    #[test]
    fn unknown_fields_and_old_versions_are_warnings() {
        let policy = Policy::parse(
            "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nx: 1\nrules: [{level: None, user: a, verbs: null}]",
        );
        let warnings = policy.expect("a valid policy").warnings().join("; ");
        assert!(warnings.starts_with("unknown field \"x\"; unknown field \"rules[0].user\"; "), "{warnings}");
        assert!(warnings.contains("deprecated"), "{warnings}");
    }
}
