//! [`AuthenticationConfiguration`]: the file of `--authentication-config`, and its validation
//! (`apiserver/pkg/apis/apiserver/validation/validation.go`).

use std::collections::BTreeSet;

use listwatch_cel::Expression;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;

use super::claims::{CLAIMS, ClaimMappings, ClaimRule, Compiled, Source};

/// The number of issuers in a file (`maxJWTAuthenticators`).
pub(crate) const ISSUERS_MAX: usize = 64;

/// The largest file, in bytes.
pub(crate) const CONFIG_BYTES_MAX: usize = 1 << 20;

const API_VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];

/// The algorithms of signatures (`AllValidSigningAlgorithms`, without ES512).
const ALGORITHMS: [&str; 8] = ["ES256", "ES384", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"];

/// The error of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidConfiguration(String);

/// The rule for anonymous requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnonymousConfiguration {
    /// Whether anonymous requests are allowed.
    pub enabled: bool,
    /// The paths to which anonymous requests are limited, without patterns. Empty: all paths.
    pub paths: Vec<String>,
}

/// The issuers of a file, and its rule for anonymous requests.
#[derive(Clone, Debug)]
pub struct AuthenticationConfiguration {
    /// The issuers, in their order.
    pub issuers: Vec<JwtIssuer>,
    /// The rule for anonymous requests; `None`: the flag decides.
    pub anonymous: Option<AnonymousConfiguration>,
}

/// One issuer: the URL of its keys, the rules for its tokens, and the mapping to users.
#[derive(Clone, Debug)]
pub struct JwtIssuer {
    url: String,
    discovery_url: String,
    certificate_authority: String,
    audiences: Vec<String>,
    mappings: ClaimMappings,
    algorithms: Vec<String>,
}

/// The values of the flags `--oidc-*`. Absent texts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OidcFlags {
    /// `--oidc-issuer-url`.
    pub issuer_url: String,
    /// `--oidc-client-id`: the audience.
    pub client_id: String,
    /// The contents of `--oidc-ca-file`.
    pub certificate_authority: String,
    /// `--oidc-username-claim`.
    pub username_claim: String,
    /// `--oidc-username-prefix`. If empty, the prefix is the issuer URL with `#`, or no prefix for the claim `email`.
    /// `-` means no prefix.
    pub username_prefix: String,
    /// `--oidc-groups-claim`; empty: no groups.
    pub groups_claim: String,
    /// `--oidc-groups-prefix`.
    pub groups_prefix: String,
    /// `--oidc-required-claim`: claims with their values.
    pub required_claims: Vec<(String, String)>,
    /// `--oidc-signing-algs`.
    pub signing_algorithms: Vec<String>,
}

impl JwtIssuer {
    /// The issuer that flags describe (`BuiltInAuthenticationOptions.ToAuthenticationConfig`). `own_issuers` are the
    /// issuers of service account tokens.
    ///
    /// # Errors
    /// [`InvalidConfiguration`] with the path of the wrong field, as for a file.
    pub fn of_flags(flags: OidcFlags, own_issuers: &[String]) -> Result<Self, InvalidConfiguration> {
        if let Some(unknown) = flags.signing_algorithms.iter().find(|name| !ALGORITHMS.contains(&name.as_str())) {
            return Err(InvalidConfiguration(format!("oidc: unsupported signing alg: {unknown:?}")));
        }
        let prefix = match flags.username_prefix.as_str() {
            "" if flags.username_claim != "email" => format!("{}#", flags.issuer_url),
            "-" => String::new(),
            prefix => prefix.to_owned(),
        };
        let claim = |claim: String, prefix: String| SourceFile { claim, prefix: Some(prefix), ..SourceFile::default() };
        let groups = match flags.groups_claim.is_empty() {
            true => SourceFile::default(),
            false => claim(flags.groups_claim, flags.groups_prefix),
        };
        let required = flags.required_claims.into_iter();
        let file = JwtFile {
            issuer: IssuerFile {
                url: flags.issuer_url,
                discovery_url: String::new(),
                certificate_authority: flags.certificate_authority,
                audiences: vec![flags.client_id],
                audience_match_policy: String::new(),
                egress_selector_type: String::new(),
            },
            claim_validation_rules: required
                .map(|(claim, required_value)| ClaimRuleFile { claim, required_value, ..ClaimRuleFile::default() })
                .collect(),
            claim_mappings: MappingsFile {
                username: claim(flags.username_claim, prefix),
                groups,
                uid: SourceFile::default(),
                extra: Vec::new(),
            },
            user_validation_rules: Vec::new(),
        };
        let found = issuer(file).map_err(|why| InvalidConfiguration(format!("jwt[0].{why}")))?;
        if own_issuers.contains(&found.url) {
            let text = format!("jwt[0].issuer.url: Invalid value: {:?}: it signs service account tokens", found.url);
            return Err(InvalidConfiguration(text));
        }
        Ok(JwtIssuer { algorithms: flags.signing_algorithms, ..found })
    }

    /// The URL of the issuer, as in `iss`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the discovery document.
    pub(super) fn discovery_url(&self) -> &str {
        &self.discovery_url
    }

    pub(super) fn certificate_authority(&self) -> &str {
        &self.certificate_authority
    }

    pub(super) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// Whether tokens may be signed by this algorithm.
    pub(super) fn allows_algorithm(&self, name: &str) -> bool {
        self.algorithms.iter().any(|allowed| allowed == name)
    }

    pub(super) fn mappings(&self) -> &ClaimMappings {
        &self.mappings
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    jwt: Vec<JwtFile>,
    #[serde(default)]
    anonymous: Option<AnonymousFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnonymousFile {
    #[serde(default)]
    enabled: bool,
    #[serde(default)]
    conditions: Vec<ConditionFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionFile {
    path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JwtFile {
    issuer: IssuerFile,
    #[serde(default)]
    claim_validation_rules: Vec<ClaimRuleFile>,
    claim_mappings: MappingsFile,
    #[serde(default)]
    user_validation_rules: Vec<UserRuleFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IssuerFile {
    url: String,
    #[serde(rename = "discoveryURL", default)]
    discovery_url: String,
    #[serde(default)]
    certificate_authority: String,
    #[serde(default)]
    audiences: Vec<String>,
    #[serde(default)]
    audience_match_policy: String,
    #[serde(default)]
    egress_selector_type: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ClaimRuleFile {
    claim: String,
    required_value: String,
    expression: String,
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct UserRuleFile {
    expression: String,
    message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MappingsFile {
    username: SourceFile,
    #[serde(default)]
    groups: SourceFile,
    #[serde(default)]
    uid: SourceFile,
    #[serde(default)]
    extra: Vec<ExtraFile>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct SourceFile {
    claim: String,
    prefix: Option<String>,
    expression: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExtraFile {
    key: String,
    value_expression: String,
}

impl AuthenticationConfiguration {
    /// Reads a file in YAML or JSON. `own_issuers` are the issuers of service account tokens, which no entry may have.
    ///
    /// # Errors
    /// [`InvalidConfiguration`] with the path of the wrong field.
    pub fn parse(text: &str, own_issuers: &[String]) -> Result<Self, InvalidConfiguration> {
        if text.len() > CONFIG_BYTES_MAX {
            return Err(InvalidConfiguration(format!("the file has more than {CONFIG_BYTES_MAX} bytes")));
        }
        let file: File = yaml_serde::from_str(text).map_err(|error| InvalidConfiguration(error.to_string()))?;
        if file.kind != "AuthenticationConfiguration" || !API_VERSIONS.contains(&file.api_version.as_str()) {
            let text = format!(
                "{} of {:?} is not an AuthenticationConfiguration of {}",
                file.kind, file.api_version, API_VERSIONS[0]
            );
            return Err(InvalidConfiguration(text));
        }
        if file.jwt.len() > ISSUERS_MAX {
            return Err(InvalidConfiguration(format!(
                "jwt: Too many: {}: must have at most {ISSUERS_MAX} items",
                file.jwt.len()
            )));
        }
        let mut seen: BTreeSet<String> = own_issuers.iter().cloned().collect();
        let mut issuers = Vec::new();
        for (at, jwt) in file.jwt.into_iter().enumerate() {
            let issuer = issuer(jwt).map_err(|why| InvalidConfiguration(format!("jwt[{at}].{why}")))?;
            if !seen.insert(issuer.url.clone()) {
                let text = format!(
                    "jwt[{at}].issuer.url: Duplicate value: {:?}: another authenticator has this issuer",
                    issuer.url
                );
                return Err(InvalidConfiguration(text));
            }
            issuers.push(issuer);
        }
        let anonymous = file.anonymous.map(anonymous).transpose()?;
        Ok(AuthenticationConfiguration { issuers, anonymous })
    }
}

fn anonymous(file: AnonymousFile) -> Result<AnonymousConfiguration, InvalidConfiguration> {
    if !file.enabled && !file.conditions.is_empty() {
        let text = "anonymous.conditions: Invalid value: enabled should be set to true when conditions are defined";
        return Err(InvalidConfiguration(text.to_owned()));
    }
    let paths: Vec<String> = file.conditions.into_iter().map(|condition| condition.path).collect();
    if let Some(at) = paths.iter().position(|path| !path.starts_with('/')) {
        return Err(InvalidConfiguration(format!(
            "anonymous.conditions[{at}].path: Invalid value: must begin with '/'"
        )));
    }
    Ok(AnonymousConfiguration { enabled: file.enabled, paths })
}

fn issuer(file: JwtFile) -> Result<JwtIssuer, String> {
    let IssuerFile {
        url,
        discovery_url,
        certificate_authority,
        audiences,
        audience_match_policy,
        egress_selector_type,
    } = file.issuer;
    check_url(&url).map_err(|why| format!("issuer.url: {why}"))?;
    if !discovery_url.is_empty() {
        check_url(&discovery_url).map_err(|why| format!("issuer.discoveryURL: {why}"))?;
        if discovery_url.trim_end_matches('/') == url.trim_end_matches('/') {
            return Err("issuer.discoveryURL: Invalid value: discoveryURL must be different from url".to_owned());
        }
    }
    if audiences.is_empty() {
        return Err("issuer.audiences: Required value: at least one issuer.audiences is required".to_owned());
    }
    if audiences.iter().any(String::is_empty) {
        return Err("issuer.audiences: Required value: audience can't be empty".to_owned());
    }
    match (audiences.len(), audience_match_policy.as_str()) {
        (_, "MatchAny") | (1, "") => {}
        (1, _) => {
            return Err(
                "issuer.audienceMatchPolicy: Invalid value: must be empty or MatchAny for single audience".to_owned()
            );
        }
        _ => {
            return Err("issuer.audienceMatchPolicy: Invalid value: must be MatchAny for multiple audiences".to_owned());
        }
    }
    if !egress_selector_type.is_empty() {
        return Err("issuer.egressSelectorType: Forbidden: this server has no egress selector".to_owned());
    }
    if !certificate_authority.is_empty() {
        let mut found = CertificateDer::pem_slice_iter(certificate_authority.as_bytes());
        if !matches!(found.next(), Some(Ok(_))) {
            return Err("issuer.certificateAuthority: Invalid value: no certificate in PEM".to_owned());
        }
    }
    let mappings = mappings(file.claim_mappings, file.claim_validation_rules, file.user_validation_rules)?;
    let discovery_url = match discovery_url.as_str() {
        "" => format!("{}/.well-known/openid-configuration", url.trim_end_matches('/')),
        _ => discovery_url,
    };
    let algorithms = ALGORITHMS.map(str::to_owned).into();
    Ok(JwtIssuer { url, discovery_url, certificate_authority, audiences, mappings, algorithms })
}

fn check_url(url: &str) -> Result<(), &'static str> {
    if url.is_empty() {
        return Err("Required value: URL is required");
    }
    let uri: http::Uri = url.parse().map_err(|_| "Invalid value: not a URL")?;
    if uri.scheme_str() != Some("https") {
        return Err("Invalid value: URL scheme must be https");
    }
    if uri.host().is_none_or(str::is_empty) || uri.authority().is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err("Invalid value: URL must not contain a username or password, and needs a host");
    }
    if uri.query().is_some() || url.contains('#') {
        return Err("Invalid value: URL must not contain a query or a fragment");
    }
    Ok(())
}

fn mappings(
    file: MappingsFile,
    claim_rules: Vec<ClaimRuleFile>,
    user_rules: Vec<UserRuleFile>,
) -> Result<ClaimMappings, String> {
    check_email_verified(&file, &claim_rules)?;
    let text_or_list = ["string", "list(string)", "list(dyn)", "list(any)", "null_type"];
    let username = source("claimMappings.username", file.username, &["string"], true)?
        .ok_or("claimMappings.username: Required value: claim or expression is required")?;
    let groups = source("claimMappings.groups", file.groups, &text_or_list, true)?;
    let uid = source("claimMappings.uid", file.uid, &["string"], false)?;
    let mut extra = Vec::new();
    for (at, ExtraFile { key, value_expression }) in file.extra.into_iter().enumerate() {
        let path = format!("claimMappings.extra[{at}]");
        check_extra_key(&key).map_err(|why| format!("{path}.key: Invalid value: {key:?}: {why}"))?;
        if extra.iter().any(|(found, _)| *found == key) {
            return Err(format!("{path}.key: Duplicate value: {key:?}"));
        }
        let compiled = Compiled::over_claims(&value_expression, &text_or_list)
            .map_err(|why| format!("{path}.valueExpression: Invalid value: {value_expression:?}: {why}"))?;
        extra.push((key, compiled));
    }
    let mut rules = Vec::new();
    for (at, ClaimRuleFile { claim, required_value, expression, message }) in claim_rules.into_iter().enumerate() {
        let path = format!("claimValidationRules[{at}]");
        rules.push(match (claim.is_empty(), expression.is_empty()) {
            (false, true) if message.is_empty() => ClaimRule::Required { claim, value: required_value },
            (false, true) => {
                return Err(format!("{path}.message: Invalid value: message can't be set when claim is set"));
            }
            (true, false) if required_value.is_empty() => {
                let rule = Compiled::over_claims(&expression, &["bool"])
                    .map_err(|why| format!("{path}.expression: Invalid value: {expression:?}: {why}"))?;
                ClaimRule::Expression { rule: Box::new(rule), message }
            }
            (true, false) => {
                return Err(format!(
                    "{path}.requiredValue: Invalid value: requiredValue can't be set when expression is set"
                ));
            }
            (true, true) => return Err(format!("{path}: Required value: claim or expression is required")),
            (false, false) => return Err(format!("{path}: Invalid value: claim and expression can't both be set")),
        });
    }
    let mut of_user = Vec::new();
    for (at, UserRuleFile { expression, message }) in user_rules.into_iter().enumerate() {
        let rule = Compiled::over_user(&expression)
            .map_err(|why| format!("userValidationRules[{at}].expression: Invalid value: {expression:?}: {why}"))?;
        of_user.push((rule, message));
    }
    Ok(ClaimMappings { username, groups, uid, extra, claim_rules: rules, user_rules: of_user })
}

/// One part of the user; `None` if the file has none.
fn source(path: &str, file: SourceFile, types: &[&str], has_prefix: bool) -> Result<Option<Source>, String> {
    let SourceFile { claim, prefix, expression } = file;
    match (claim.is_empty(), expression.is_empty()) {
        (false, false) => Err(format!("{path}: Invalid value: claim and expression can't both be set")),
        (true, false) if prefix.is_some() => {
            Err(format!("{path}.prefix: Invalid value: prefix can't be set when expression is set"))
        }
        (true, false) => {
            let compiled = Compiled::over_claims(&expression, types)
                .map_err(|why| format!("{path}.expression: Invalid value: {expression:?}: {why}"))?;
            Ok(Some(Source::Expression(Box::new(compiled))))
        }
        (false, true) => match prefix {
            None if has_prefix => Err(format!(
                "{path}.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing"
            )),
            prefix => Ok(Some(Source::Claim { name: claim, prefix: prefix.unwrap_or_default() })),
        },
        (true, true) if prefix.is_some_and(|prefix| !prefix.is_empty()) => {
            Err(format!("{path}: Required value: claim is required when prefix is set"))
        }
        (true, true) => Ok(None),
    }
}

/// If the username expression uses `claims.email`, requires `claims.email_verified` in it, in an extra value or in a
/// claim validation rule (`hasSelectExp`). The claims may also be read with an index: `claims['email']`.
fn check_email_verified(file: &MappingsFile, rules: &[ClaimRuleFile]) -> Result<(), String> {
    // An expression that does not compile is rejected later.
    let reads = |text: &str, claim: &str| Expression::parse(text).is_ok_and(|parsed| parsed.reads_field(CLAIMS, claim));
    if !reads(&file.username.expression, "email") {
        return Ok(());
    }
    let others = file.extra.iter().map(|extra| extra.value_expression.as_str());
    let mut all =
        others.chain(rules.iter().map(|rule| rule.expression.as_str())).chain([file.username.expression.as_str()]);
    if !all.any(|text| reads(text, "email_verified")) {
        return Err("claimMappings.username.expression: Invalid value: claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression".to_owned());
    }
    Ok(())
}

fn check_extra_key(key: &str) -> Result<(), &'static str> {
    let Some((domain, name)) = key.split_once('/') else {
        return Err("must be a domain-prefixed path (such as \"acme.io/foo\")");
    };
    if key.chars().any(char::is_uppercase) {
        return Err("key must be lowercase");
    }
    if name.is_empty() || listwatch_meta::selector::validate_dns_subdomain(domain).is_err() {
        return Err("must be a domain-prefixed path (such as \"acme.io/foo\")");
    }
    let is_reserved =
        |suffix: &str| domain == suffix || domain.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'));
    if is_reserved("k8s.io") || is_reserved("kubernetes.io") {
        return Err("k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use");
    }
    Ok(())
}
