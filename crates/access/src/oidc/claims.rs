//! Maps the claims of a token to a user, by names of claims with prefixes or by CEL expressions
//! (`apiserver/pkg/authentication/cel`).

use std::collections::BTreeMap;
use std::sync::Arc;

use listwatch_cel::{Expression, Type, Value as CelValue};
use listwatch_json::{Map, Value, json};
use listwatch_meta::UserInfo;

/// The largest cost of one expression, in units of CEL: about 5 ms. An expression above it rejects the token.
pub(crate) const EXPRESSION_COST_MAX: u64 = 100_000;

/// The CEL variable that contains the claims of the token.
pub(super) const CLAIMS: &str = "claims";
/// The CEL variable that contains the user, in user validation rules.
const USER: &str = "user";

/// The extra key of a token's id.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A compiled expression over one variable.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    source: String,
    expression: Arc<Expression>,
    variable: &'static str,
}

impl Compiled {
    /// Compiles an expression over the claims.
    ///
    /// # Errors
    /// The compiler's text, or that the type is not one of `types`.
    pub(super) fn over_claims(source: &str, types: &[&str]) -> Result<Self, String> {
        Compiled::new(source, CLAIMS, types)
    }

    /// Compiles an expression over the user.
    ///
    /// # Errors
    /// As [`Compiled::over_claims`].
    pub(super) fn over_user(source: &str) -> Result<Self, String> {
        Compiled::new(source, USER, &["bool"])
    }

    fn new(source: &str, variable: &'static str, types: &[&str]) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("compilation failed: {error}");
        let expression = Expression::parse(source).map_err(|error| failed(&error))?;
        let checked = expression.check([(variable, Type::DYN)]).map_err(|error| failed(&error))?;
        let found = checked.ty.to_string();
        if !types.contains(&found.as_str()) && !matches!(found.as_str(), "dyn" | "any") {
            return Err(format!("must evaluate to one of {types:?}"));
        }
        Ok(Compiled { source: source.to_owned(), expression: Arc::new(expression), variable })
    }

    /// Evaluates the expression and calls a function with the value.
    fn evaluate<T>(&self, value: &Value, read: impl FnOnce(&CelValue<'_>) -> Option<T>) -> Result<T, String> {
        let variable = CelValue::json(value, None, false);
        let evaluation = self.expression.evaluate([(self.variable, variable)], EXPRESSION_COST_MAX);
        let failed = |why: String| format!("expression '{}' resulted in error: {why}", self.source);
        let found = evaluation.result.map_err(|error| failed(error.to_string()))?;
        read(&found).ok_or_else(|| failed("the value has another type".to_owned()))
    }
}

/// The nonempty strings of a string or of a list.
fn texts(value: &CelValue<'_>) -> Option<Vec<String>> {
    let all = match value.as_str() {
        Some(text) => vec![text.to_owned()],
        None if value.is_null() => Vec::new(),
        None => value.as_text_list()?,
    };
    Some(all.into_iter().filter(|text| !text.is_empty()).collect())
}

/// The source of one part of the user.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A claim, with a prefix for its values.
    Claim {
        name: String,
        prefix: String,
    },
    Expression(Box<Compiled>),
}

/// A validation rule for claims (`claimValidationRules`).
#[derive(Clone, Debug)]
pub(super) enum ClaimRule {
    Required { claim: String, value: String },
    Expression { rule: Box<Compiled>, message: String },
}

/// The sources of the parts of the user, and the validation rules.
#[derive(Clone, Debug)]
pub(super) struct ClaimMappings {
    pub(super) username: Source,
    pub(super) groups: Option<Source>,
    pub(super) uid: Option<Source>,
    pub(super) extra: Vec<(String, Compiled)>,
    pub(super) claim_rules: Vec<ClaimRule>,
    pub(super) user_rules: Vec<(Compiled, String)>,
}

impl ClaimMappings {
    /// The user of a token. The order of the checks is upstream's.
    ///
    /// # Errors
    /// The reason of the rejection, which contains no value of a claim.
    pub(super) fn user(&self, claims: &Map) -> Result<UserInfo, String> {
        if let Some(Source::Claim { name, .. }) = &self.groups {
            check_distributed(claims, name)?;
        }
        let all = Value::Object(claims.clone());
        let mut user = UserInfo { username: self.username(claims, &all)?, ..UserInfo::default() };
        user.groups = match &self.groups {
            None => Vec::new(),
            Some(Source::Expression(groups)) => groups.evaluate(&all, texts)?,
            Some(Source::Claim { name, prefix }) => {
                let groups = match claims.get(name) {
                    None | Some(Value::Null) => Vec::new(),
                    Some(Value::String(group)) => vec![group.as_str()],
                    Some(Value::Array(groups)) => {
                        let texts = groups.iter().map(Value::as_str);
                        texts.collect::<Option<_>>().ok_or_else(|| wrong_type(name))?
                    }
                    Some(_) => return Err(wrong_type(name)),
                };
                groups.into_iter().filter(|group| !group.is_empty()).map(|group| format!("{prefix}{group}")).collect()
            }
        };
        user.uid = match &self.uid {
            None => String::new(),
            Some(Source::Expression(uid)) => uid.evaluate(&all, |value| value.as_str().map(str::to_owned))?,
            Some(Source::Claim { name, .. }) => text_claim(claims, name)?.to_owned(),
        };
        let mut extra = BTreeMap::new();
        for (key, values) in &self.extra {
            let values = values.evaluate(&all, texts)?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        if let Some(id) = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty()) {
            extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
        }
        user.extra = extra;
        self.check_rules(claims, &all, &user)?;
        Ok(user)
    }

    fn username(&self, claims: &Map, all: &Value) -> Result<String, String> {
        match &self.username {
            Source::Expression(username) => {
                let name = username.evaluate(all, |value| value.as_str().map(str::to_owned))?;
                if name.is_empty() {
                    Err("the username expression returned an empty string".to_owned())
                } else {
                    Ok(name)
                }
            }
            Source::Claim { name, prefix } => {
                let username = text_claim(claims, name)?;
                // An address that the issuer has not verified is anybody's.
                if name == "email" {
                    match claims.get("email_verified") {
                        None | Some(Value::Bool(true)) => {}
                        Some(Value::Bool(false)) => return Err("email not verified".to_owned()),
                        Some(_) => return Err(wrong_type("email_verified")),
                    }
                }
                // Stricter than upstream, which forbids an empty name only of an expression: all users without a name
                // would be one user.
                if username.is_empty() {
                    return Err(format!("the claim {name:?} is empty"));
                }
                Ok(format!("{prefix}{username}"))
            }
        }
    }

    fn check_rules(&self, claims: &Map, all: &Value, user: &UserInfo) -> Result<(), String> {
        for rule in &self.claim_rules {
            match rule {
                ClaimRule::Required { claim, value } => match claims.get(claim) {
                    None => return Err(format!("required claim {claim} not present in ID token")),
                    Some(Value::String(found)) if found == value => {}
                    Some(_) => return Err(format!("required claim {claim} has another value")),
                },
                ClaimRule::Expression { rule, message } => check(rule, all, message)?,
            }
        }
        if !self.user_rules.is_empty() {
            let value = json!({"username": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra});
            for (rule, message) in &self.user_rules {
                check(rule, &value, message)?;
            }
        }
        Ok(())
    }
}

fn check(rule: &Compiled, value: &Value, message: &str) -> Result<(), String> {
    match rule.evaluate(value, |value| value.as_bool())? {
        true => Ok(()),
        false if message.is_empty() => Err(format!("validation expression '{}' failed", rule.source)),
        false => Err(format!("validation expression '{}' failed: {message}", rule.source)),
    }
}

fn text_claim<'a>(claims: &'a Map, name: &str) -> Result<&'a str, String> {
    let claim = claims.get(name).ok_or_else(|| format!("claim {name:?} is not present"))?;
    claim.as_str().ok_or_else(|| wrong_type(name))
}

/// Rejects a token whose groups are at another endpoint (OpenID Connect Core 1.0, section 5.6.2): this server does not
/// fetch distributed claims, and the user must not lose groups silently (`claimResolver.expand`). As upstream, a source
/// without an endpoint is ignored.
fn check_distributed(claims: &Map, name: &str) -> Result<(), String> {
    let names = match claims.get("_claim_names") {
        Some(names) if !claims.contains_key(name) => names,
        _ => return Ok(()),
    };
    let failed = |why: &str| Err(format!("could not expand distributed claims: {why}"));
    let nothing = Map::new();
    let map = |value| match value {
        &Value::Null => Some(&nothing),
        value => value.as_object(),
    };
    let Some(names) = map(names).filter(|names| names.values().all(|name| name.is_string() || name.is_null())) else {
        return failed("oidc: error parsing distributed claim names");
    };
    let Some(sources) = claims.get("_claim_sources") else { return failed("oidc: no claim sources") };
    let Some(sources) = map(sources) else { return failed("oidc: could not parse claim sources") };
    let Some(source) = names.get(name) else { return Ok(()) };
    let source = source.as_str().unwrap_or_default();
    let Some(found) = sources.get(source) else {
        return failed(&format!("id token _claim_names contained a source {source} missing in _claims_sources"));
    };
    match found.get("endpoint") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(endpoint)) if endpoint.is_empty() => Ok(()),
        _ => failed(&format!("this server does not fetch the distributed claim {name:?}")),
    }
}

fn wrong_type(name: &str) -> String {
    format!("the claim {name:?} has another type")
}
