//! The type of `request` in the match conditions of authorization webhooks: the spec of a SubjectAccessReview.
//!
//! Rules: `buildRequestType` in `apiserver/pkg/authorization/cel/compile.go`, Kubernetes 1.36. Field names are not
//! escaped: `request.resourceAttributes.namespace` is valid.

use std::rc::Rc;

use crate::types::{Declared, REQUEST_BYTES_MAX, Type};

/// `kubernetes.SubjectAccessReviewSpec`.
pub(crate) static SPEC: Declared = Declared {
    name: "kubernetes.SubjectAccessReviewSpec",
    field: |name| {
        Some(match name {
            "resourceAttributes" => Type::Declared(&RESOURCE),
            "nonResourceAttributes" => Type::Declared(&NON_RESOURCE),
            "user" | "uid" => text(),
            "groups" => texts(),
            "extra" => Type::Map(Rc::new(text()), Rc::new(texts()), REQUEST_BYTES_MAX),
            _ => return None,
        })
    },
};

static RESOURCE: Declared = Declared {
    name: "kubernetes.ResourceAttributes",
    field: |name| {
        Some(match name {
            "namespace" | "verb" | "group" | "version" | "resource" | "subresource" | "name" => text(),
            "fieldSelector" => Type::Declared(&FIELD_SELECTOR),
            "labelSelector" => Type::Declared(&LABEL_SELECTOR),
            _ => return None,
        })
    },
};

static NON_RESOURCE: Declared =
    Declared { name: "kubernetes.NonResourceAttributes", field: |name| matches!(name, "path" | "verb").then(text) };

static FIELD_SELECTOR: Declared = Declared { name: "kubernetes.FieldSelectorAttributes", field: selector_field };

static LABEL_SELECTOR: Declared = Declared { name: "kubernetes.LabelSelectorAttributes", field: selector_field };

static REQUIREMENT: Declared = Declared {
    name: "kubernetes.SelectorRequirement",
    field: |name| match name {
        "key" | "operator" => Some(text()),
        "values" => Some(texts()),
        _ => None,
    },
};

fn selector_field(name: &str) -> Option<Type<'static>> {
    match name {
        "rawSelector" => Some(text()),
        "requirements" => Some(Type::List(Rc::new(Type::Declared(&REQUIREMENT)), REQUEST_BYTES_MAX)),
        _ => None,
    }
}

fn text() -> Type<'static> {
    Type::Text(REQUEST_BYTES_MAX)
}

fn texts() -> Type<'static> {
    Type::List(Rc::new(text()), REQUEST_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use crate::{Expression, Type, Value};

    /// Asserts the type of an expression, or the first line of the compiler's error.
    fn check(source: &str, expected: &str) {
        let checked = Expression::parse(source).and_then(|parsed| {
            let checked = parsed.check([("request", Type::access_review())])?;
            Ok(checked.ty.to_string())
        });
        let found = checked.unwrap_or_else(|error| error.to_string().lines().next().unwrap_or_default().to_owned());
        assert_eq!(found, expected, "{source}");
    }

    #[test]
    fn access_review_expression_is_type_checked_against_upstreams_fields() {
        check("request.user == 'alice'", "bool");
        check("'dev' in request.groups", "bool");
        check("has(request.resourceAttributes) && request.resourceAttributes.namespace == 'kube-system'", "bool");
        check("request.?resourceAttributes.namespace.orValue('') == 'a'", "bool");
        check("request.extra['scopes'].exists(scope, scope == 'all')", "bool");
        check(
            "request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'a' && 'b' in r.values)",
            "bool",
        );
        check("request.resourceAttributes.labelSelector.rawSelector == ''", "bool");
        check("has(request.nonResourceAttributes) && request.nonResourceAttributes.path.startsWith('/api')", "bool");
        check("request.user", "string");
        check("request", "kubernetes.SubjectAccessReviewSpec");
        check("request.name == ''", "ERROR: <input>:1:8: undefined field 'name'");
        check("request.resourceAttributes.path == ''", "ERROR: <input>:1:27: undefined field 'path'");
        check(
            "request.groups == 'a'",
            "ERROR: <input>:1:16: found no matching overload for '_==_' applied to '(list(string), string)'",
        );
        check("object.a == 1", "ERROR: <input>:1:1: undeclared reference to 'object' (in container '')");
    }

    #[test]
    fn absent_field_of_an_access_review_is_an_error_without_has() {
        let request = json!({"user": "a", "groups": [], "nonResourceAttributes": {"path": "/", "verb": "get"}});
        let evaluate = |source: &str| {
            let expression = Expression::parse(source).unwrap();
            let value = Value::json(&request, None, false);
            let result = expression.evaluate([("request", value)], 10_000).result;
            result.map(|value| value.as_bool()).map_err(|error| error.to_string())
        };
        assert_eq!(evaluate("has(request.resourceAttributes)"), Ok(Some(false)));
        assert_eq!(evaluate("request.nonResourceAttributes.verb == 'get'"), Ok(Some(true)));
        assert_eq!(
            evaluate("request.resourceAttributes.name == ''"),
            Err("no such key: resourceAttributes".to_owned())
        );
    }
}
