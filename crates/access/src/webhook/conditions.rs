//! [`MatchConditions`]: CEL expressions that decide whether a request is sent to a webhook
//! (`apiserver/pkg/authorization/cel`).

use std::collections::BTreeSet;
use std::sync::Arc;

use listwatch_cel::{Expression, Type, Value as CelValue};
use listwatch_json::{Map, Value, json};
use listwatch_meta::go::quote;
use listwatch_meta::status::FieldError;

use super::authorizer::{field_requirement, label_requirement};
use crate::authorizer::Attributes;

/// The number of match conditions of one webhook (`maxMatchConditions`).
pub(crate) const CONDITIONS_MAX: usize = 64;

/// The largest cost of one condition, in units of CEL: about 5 ms. A condition above it is an error.
pub(crate) const CONDITION_COST_MAX: u64 = 100_000;

const REQUEST: &str = "request";

/// The conditions that a request must meet to be sent to a webhook. Without conditions, all requests are sent.
#[derive(Clone, Debug, Default)]
pub struct MatchConditions(Arc<[Condition]>);

#[derive(Debug)]
struct Condition {
    source: String,
    expression: Expression,
}

impl PartialEq for MatchConditions {
    fn eq(&self, other: &MatchConditions) -> bool {
        self.sources().eq(other.sources())
    }
}

impl Eq for MatchConditions {}

impl MatchConditions {
    /// Compiles expressions over the spec of a SubjectAccessReview of `v1`.
    ///
    /// # Errors
    /// The errors with kube-apiserver's texts. `path` is the path of the webhook in its file.
    pub fn compile<'s>(path: &str, sources: impl IntoIterator<Item = &'s str>) -> Result<Self, Vec<FieldError>> {
        let sources: Vec<&str> = sources.into_iter().collect();
        let path = format!("{path}.matchConditions");
        if sources.len() > CONDITIONS_MAX {
            return Err(vec![FieldError::too_many(&path, sources.len(), CONDITIONS_MAX)]);
        }
        let (mut conditions, mut errors, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (at, source) in sources.into_iter().enumerate() {
            let path = format!("{path}[{at}].expression");
            if source.trim().is_empty() {
                errors.push(FieldError::required(&path, ""));
            } else if !seen.insert(source) {
                errors.push(FieldError::duplicate(&path, quote(source)));
            } else {
                match compile(source) {
                    Ok(expression) => conditions.push(Condition { source: source.to_owned(), expression }),
                    Err(why) => errors.push(FieldError::invalid_text(&path, source, why)),
                }
            }
        }
        if errors.is_empty() { Ok(MatchConditions(conditions.into())) } else { Err(errors) }
    }

    fn sources(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|condition| condition.source.as_str())
    }

    /// Whether a request is sent to the webhook (`CELMatcher.Eval`). A false condition takes precedence over errors of
    /// other conditions.
    ///
    /// # Errors
    /// The errors of the conditions, if no condition is false.
    pub(super) fn matches(&self, attributes: &Attributes<'_>) -> Result<bool, String> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let request = request(attributes);
        let mut errors = Vec::new();
        for Condition { source, expression } in &*self.0 {
            let value = CelValue::json(&request, None, false);
            let result = expression.evaluate([(REQUEST, value)], CONDITION_COST_MAX).result;
            let failed = |why: &str| format!("cel evaluation error: expression '{source}' {why}");
            match result.as_ref().map(CelValue::as_bool) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => return Ok(false),
                Ok(None) => errors.push(failed("eval result type should be bool")),
                Err(error) => errors.push(failed(&format!("resulted in error: {error}"))),
            }
        }
        match errors.len() {
            0 => Ok(true),
            1 => Err(errors.remove(0)),
            _ => Err(format!("[{}]", errors.join(", "))),
        }
    }
}

fn compile(source: &str) -> Result<Expression, String> {
    let failed = |error: &dyn std::fmt::Display| format!("compilation failed: {error}");
    let expression = Expression::parse(source).map_err(|error| failed(&error))?;
    let checked = expression.check([(REQUEST, Type::access_review())]).map_err(|error| failed(&error))?;
    match checked.ty {
        Type::Bool => Ok(()),
        other => Err(format!("must evaluate to bool but got {other}")),
    }?;
    Ok(expression)
}

/// Builds the CEL variable `request`. Empty strings are included (`convertObjectToUnstructured`).
fn request(attributes: &Attributes<'_>) -> Value {
    let user = attributes.user;
    let mut request = json!({"user": user.username, "groups": user.groups, "uid": user.uid, "extra": user.extra});
    if attributes.is_resource_request {
        let mut resource = Map::new();
        for (name, text) in [
            ("namespace", attributes.namespace),
            ("verb", attributes.verb),
            ("group", attributes.api_group),
            ("version", attributes.api_version),
            ("resource", attributes.resource),
            ("subresource", attributes.subresource),
            ("name", attributes.name),
        ] {
            resource.insert(name, json!(text));
        }
        let fields: Vec<Value> = attributes.field_selector.iter().map(field_requirement).collect();
        let labels: Vec<Value> = attributes.label_selector.iter().filter_map(label_requirement).collect();
        for (name, mut requirements) in [("fieldSelector", fields), ("labelSelector", labels)] {
            if !requirements.is_empty() {
                // An absent list is an empty one.
                requirements.iter_mut().filter_map(Value::as_object_mut).for_each(|requirement| {
                    requirement.entry("values").or_insert_with(|| json!([]));
                });
                resource.insert(name, json!({"requirements": requirements}));
            }
        }
        request["resourceAttributes"] = Value::Object(resource);
    } else {
        request["nonResourceAttributes"] = json!({"path": attributes.path, "verb": attributes.verb});
    }
    request
}

#[cfg(test)]
mod tests {
    use listwatch_meta::{FieldSelector, LabelSelector, UserInfo};

    use super::*;

    fn check(sources: &[&str], attributes: &Attributes<'_>, expected: Result<bool, &str>) {
        let conditions = MatchConditions::compile("w", sources.iter().copied()).unwrap();
        assert_eq!(conditions.matches(attributes), expected.map_err(str::to_owned), "{sources:?}");
    }

    #[test]
    fn webhook_is_called_if_all_conditions_are_true_and_skipped_if_one_is_false() {
        let user = UserInfo {
            username: "alice".to_owned(),
            groups: vec!["dev".to_owned()],
            extra: [("scopes".to_owned(), vec!["all".to_owned()])].into(),
            ..UserInfo::default()
        };
        let fields = FieldSelector::parse("spec.nodeName=n").unwrap();
        let labels = LabelSelector::parse("app").unwrap();
        let pods = Attributes {
            namespace: "a",
            field_selector: fields.terms(),
            label_selector: labels.requirements(),
            ..Attributes::resource(&user, "list", "", "pods")
        };
        check(&[], &pods, Ok(true));
        check(
            &["request.user == 'alice'", "'dev' in request.groups", "'all' in request.extra['scopes']"],
            &pods,
            Ok(true),
        );
        check(
            &["request.resourceAttributes.namespace == 'a' && request.resourceAttributes.name == ''"],
            &pods,
            Ok(true),
        );
        check(&["request.resourceAttributes.fieldSelector.requirements[0].values == ['n']"], &pods, Ok(true));
        check(
            &[
                "request.resourceAttributes.labelSelector.requirements.all(r, r.operator == 'Exists' && r.values.size() == 0)",
            ],
            &pods,
            Ok(true),
        );
        check(&["request.user == 'alice'", "request.user == 'bob'"], &pods, Ok(false));
        let broken = "request.nonResourceAttributes.path == '/'";
        let error = format!(
            "cel evaluation error: expression '{broken}' resulted in error: no such key: nonResourceAttributes"
        );
        check(&[broken], &pods, Err(&error));
        check(&[broken, "request.user == 'alice'"], &pods, Err(&error));
        check(&[broken, "request.user == 'bob'"], &pods, Ok(false));
        let other = "request.extra['no'] == []";
        let both = format!("[{error}, cel evaluation error: expression '{other}' resulted in error: no such key: no]");
        check(&[broken, other], &pods, Err(&both));
        let path = Attributes::path(&user, "get", "/version");
        check(
            &["!has(request.resourceAttributes) && request.nonResourceAttributes.path == '/version'"],
            &path,
            Ok(true),
        );
    }

    #[test]
    fn condition_above_the_cost_limit_is_an_error() {
        let user = UserInfo { groups: vec!["g".to_owned(); 1_000], ..UserInfo::default() };
        let attributes = Attributes::path(&user, "get", "/");
        let source = "request.groups.all(a, request.groups.all(b, request.groups.all(c, a == b && b == c)))";
        let conditions = MatchConditions::compile("w", [source]).unwrap();
        let error = conditions.matches(&attributes).unwrap_err();
        assert!(error.contains("resulted in error: "), "{error}");
    }

    #[test]
    fn invalid_condition_is_rejected_with_upstreams_text() {
        let error = |sources: &[&str]| -> Vec<String> {
            let errors = MatchConditions::compile("authorizers[0]", sources.iter().copied()).unwrap_err();
            errors.iter().map(ToString::to_string).collect()
        };
        let path = "authorizers[0].matchConditions";
        assert_eq!(
            error(&["", "true", "true", "request.user"]),
            [
                format!("{path}[0].expression: Required value"),
                format!("{path}[2].expression: Duplicate value: \"true\""),
                format!("{path}[3].expression: Invalid value: \"request.user\": must evaluate to bool but got string"),
            ]
        );
        let unknown = error(&["request.nothing == 1"]).remove(0);
        let start = format!(
            "{path}[0].expression: Invalid value: \"request.nothing == 1\": compilation failed: ERROR: <input>:1:8: undefined field 'nothing'"
        );
        assert!(unknown.starts_with(&start), "{unknown}");
        let many = vec!["true"; 65];
        assert_eq!(error(&many), [format!("{path}: Too many: 65: must have at most 64 items")]);
    }
}
