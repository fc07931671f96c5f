//! Tests rules: their check with the definition, and their evaluation on objects. The expectations
//! are responses of kube-apiserver 1.36.

use listwatch_json::{Value, json};
use listwatch_schema::{CheckContext, Requirements, Schema, check};
use proptest::prelude::*;

/// A schema for `spec` with fields of many types and one rule.
fn spec(rule: &str) -> Value {
    json!({
        "type": "object",
        "properties": {
            "s": {"type": "string", "maxLength": 64}, "i": {"type": "integer"}, "d": {"type": "number"}, "b": {"type": "boolean"},
            "l": {"type": "array", "maxItems": 16, "items": {"type": "string", "maxLength": 64}},
            "n": {"type": "array", "maxItems": 16, "items": {"type": "integer"}},
            "m": {"type": "object", "maxProperties": 16, "additionalProperties": {"type": "string", "maxLength": 64}},
            "o": {"type": "object", "properties": {"x": {"type": "integer"}, "a-b": {"type": "string"},
                "namespace": {"type": "string", "maxLength": 64}, "package": {"type": "object", "properties": {"x": {"type": "integer"}}}}},
            "t": {"type": "string", "format": "date-time"}, "e": {"type": "string", "format": "duration"},
            "q": {"x-kubernetes-int-or-string": true}
        },
        "x-kubernetes-validations": [{"rule": rule}]
    })
}

fn root(spec: Value) -> Value {
    json!({"type": "object", "properties": {"spec": spec}})
}

fn texts(errors: Vec<listwatch_meta::FieldError>) -> Vec<String> {
    errors.into_iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
}

fn definition(schema: &Value) -> Vec<String> {
    let context = CheckContext {
        at: "spec.validation",
        status_subresource: false,
        unchanged: false,
        requirements: Requirements::ALL,
    };
    texts(check(schema, context).expect("a schema").errors)
}

#[track_caller]
fn holds(rule: &str, value: Value) {
    let schema = root(spec(rule));
    assert_eq!(definition(&schema), [""; 0], "{rule} is accepted");
    let errors = texts(Schema::parse(&schema).expect("a schema").validate(&json!({"spec": value})));
    assert_eq!(errors, [""; 0], "{rule} holds for {value}");
}

#[track_caller]
fn fails(rule: &str, value: Value, expected: &str) {
    let schema = root(spec(rule));
    assert_eq!(definition(&schema), [""; 0], "{rule} is accepted");
    let errors = texts(Schema::parse(&schema).expect("a schema").validate(&json!({"spec": value})));
    assert_eq!(errors, [format!("spec: Invalid value: {expected}")], "{rule} is broken by {value}");
}

#[track_caller]
fn rejected(rule: &str, expected: &str) {
    let errors = definition(&root(spec(rule)));
    let shown = serde_json::to_string(rule)
        .expect("text")
        .replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e");
    let value = format!(
        r#"{{"Rule":{shown},"Message":"","MessageExpression":"","Reason":null,"FieldPath":"","OptionalOldSelf":null}}"#
    );
    let place = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule";
    assert_eq!(errors, [format!("{place}: Invalid value: {value}: {expected}")]);
}

#[test]
fn standard_cel_functions_are_evaluated() {
    holds("self.i + 1 == 3 && self.i * 2 - 1 > 2 && -self.i < 0", json!({"i": 2}));
    holds(
        "self.s.startsWith('a') && self.s.endsWith('c') && self.s.contains('b') && size(self.s) == 3",
        json!({"s": "abc"}),
    );
    holds("self.s.matches('^[a-c]+$')", json!({"s": "abc"}));
    holds(
        "self.l.all(x, x.size() < 3) && self.l.exists(x, x == 'b') && self.l.exists_one(x, x == 'a')",
        json!({"l": ["a", "b"]}),
    );
    holds("self.l.map(x, x + '!') == ['a!', 'b!'] && self.l.filter(x, x != 'a') == ['b']", json!({"l": ["a", "b"]}));
    holds(
        "'a' in self.m && self.m['a'] == '1' && !('c' in self.m) && self.m.all(k, k.size() == 1)",
        json!({"m": {"a": "1", "b": "2"}}),
    );
    holds("has(self.i) && !has(self.s) && (has(self.s) ? self.s == 'x' : true)", json!({"i": 1}));
    holds("self.d > 1.0 && double(self.i) == 2.0 && string(self.i) == '2' && int('7') == 7", json!({"d": 1.5, "i": 2}));
    holds("self.o.x == 1 && self.o.a__dash__b == 'y'", json!({"o": {"x": 1, "a-b": "y"}}));
    holds(
        "self.t > timestamp('2020-01-01T00:00:00Z') && self.t.getFullYear() == 2024",
        json!({"t": "2024-05-06T07:08:09Z"}),
    );
    holds("self.e == duration('90m') && self.e.getHours() == 1", json!({"e": "1h30m"}));
    holds("self.e > duration('1h')", json!({"e": "3 days"}));
    holds("self.e == duration('168h')", json!({"e": "7d"}));
    holds("type(self.q) == int || type(self.q) == string", json!({"q": "50%"}));
    holds("true || self.s == 'x'", json!({}));
    holds("self.n.all(x, x > 0 && 10 / x > 0)", json!({"n": [1, 2]}));
}

#[test]
fn kubernetes_cel_library_is_evaluated() {
    holds(
        "self.l.isSorted() && self.n.sum() == 6 && self.n.min() == 1 && self.n.max() == 3 && self.n.indexOf(3) == 2",
        json!({"l": ["a", "b"], "n": [1, 2, 3]}),
    );
    holds(
        "self.s.lowerAscii() == 'a,b' && self.s.split(',') == ['A', 'B'] && self.s.substring(0, 1) == 'A' && self.s.replace(',', ';') == 'A;B'",
        json!({"s": "A,B"}),
    );
    holds(
        "self.s.find('[0-9]+') == '12' && self.s.findAll('[0-9]+') == ['12', '3'] && self.l.join('-') == 'x-y'",
        json!({"s": "a12b3", "l": ["x", "y"]}),
    );
    holds(
        "isURL(self.s) && url(self.s).getHostname() == 'h' && url(self.s).getPort() == '80' && url(self.s).getScheme() == 'https'",
        json!({"s": "https://h:80/p?q=1"}),
    );
    holds(
        "isQuantity(self.s) && quantity(self.s).isLessThan(quantity('1Gi')) && quantity(self.s).add(quantity('500m')).compareTo(quantity('1')) == 0",
        json!({"s": "500m"}),
    );
    holds(
        "isIP(self.s) && ip(self.s).family() == 4 && cidr('10.0.0.0/8').containsIP(self.s) && !isCIDR(self.s)",
        json!({"s": "10.1.2.3"}),
    );
    holds(
        "!format.dns1123Label().validate(self.s).hasValue() && format.dns1123Label().validate('A_').hasValue()",
        json!({"s": "abc"}),
    );
    holds(
        "isSemver(self.s) && semver(self.s).isLessThan(semver('2.0.0')) && semver(self.s).minor() == 2",
        json!({"s": "1.2.3"}),
    );
    holds(
        "sets.contains(self.l, ['a']) && sets.intersects(self.l, ['b', 'c']) && !sets.equivalent(self.l, ['a'])",
        json!({"l": ["a", "b"]}),
    );
    holds(
        "self.?s.orValue('none') == 'none' && optional.of(1).hasValue() && self.m[?'a'].orValue('') == '1'",
        json!({"m": {"a": "1"}}),
    );
    holds("self.l.all(i, x, i < 2 && x != '') && self.l.transformList(i, x, i) == [0, 1]", json!({"l": ["a", "b"]}));
    holds("'%s has %d'.format([self.s, self.i]) == 'a has 3'", json!({"s": "a", "i": 3}));
    holds(
        "self.m.all(k, k.split('/')[0].size() < 253) && format.dns1123Label().validate(self.s) != null",
        json!({"m": {"a/b": "1"}, "s": "a"}),
    );
}

/// Kubernetes 1.31 began to accept keywords as field names. JobSet's definition depends on it.
#[test]
fn keyword_after_a_dot_selects_the_property_of_that_name() {
    let object = json!({"o": {"namespace": "a", "package": {"x": 1}}});
    holds("self.o.namespace == 'a' && self.o.package.x == 1", object.clone());
    holds("self.o.__namespace__ == 'a' && has(self.o.namespace) && has(self.o.__package__)", object);
    holds("!has(self.o.namespace) || size(self.o.namespace) == 0", json!({"o": {}}));
    fails("self.o.namespace == 'b'", json!({"o": {"namespace": "a"}}), "failed rule: self.o.namespace == 'b'");
    let text = "undefined field 'loop'\n | self.o.loop == 1\n | ......^";
    rejected("self.o.loop == 1", &format!("compilation failed: ERROR: <input>:1:7: {text}"));
}

#[test]
fn violated_or_failing_rule_returns_an_error() {
    fails("self.i > 3", json!({"i": 1}), "failed rule: self.i > 3");
    fails("self.i > 3", json!({}), "\"object\": no such key: i evaluating rule: self.i > 3");
    fails("self.n[3] == 1", json!({"n": [1]}), "\"object\": index out of bounds: 3 evaluating rule: self.n[3] == 1");
    fails("1 / self.i == 1", json!({"i": 0}), "\"object\": division by zero evaluating rule: 1 / self.i == 1");
}

#[test]
fn rule_that_does_not_compile_is_rejected() {
    rejected(
        "self.foo == 1",
        "compilation failed: ERROR: <input>:1:5: undefined field 'foo'\n | self.foo == 1\n | ....^",
    );
    rejected(
        "self.s + 1 == 2",
        "compilation failed: ERROR: <input>:1:8: found no matching overload for '_+_' applied to '(string, int)'\n | self.s + 1 == 2\n | .......^",
    );
    rejected(
        "foo(self)",
        "compilation failed: ERROR: <input>:1:4: undeclared reference to 'foo' (in container '')\n | foo(self)\n | ...^",
    );
    rejected("self.s", "cel expression must evaluate to a bool");
    rejected(
        "self.s.startsWith(3)",
        "compilation failed: ERROR: <input>:1:18: found no matching overload for 'startsWith' applied to 'string.(int)'\n | self.s.startsWith(3)\n | .................^",
    );
    rejected(
        "x == 1",
        "compilation failed: ERROR: <input>:1:1: undeclared reference to 'x' (in container '')\n | x == 1\n | ^",
    );
}

#[test]
fn violated_rule_of_an_unchanged_value_is_tolerated_and_reported() {
    let schema = root(json!({"type": "object", "properties": {
        "c": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1", "message": "small"}]},
        "d": {"type": "integer"}}}));
    let schema = Schema::parse(&schema).expect("a schema");
    let check = |new: Value, errors: &[&str], tolerated: &[&str]| {
        let report = schema.check_update(&json!({"spec": new}), &json!({"spec": {"c": 1}}));
        assert_eq!((texts(report.errors), texts(report.tolerated)), (strings(errors), strings(tolerated)), "{new}");
    };
    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }
    check(json!({"c": 1, "d": 2}), &[], &["spec.c: Invalid value: 1: small"]);
    check(json!({"c": 0, "d": 2}), &["spec.c: Invalid value: 0: small"], &[]);
    check(json!({"c": 2}), &[], &[]);
    assert_eq!(texts(schema.validate(&json!({"spec": {"c": 1}}))), ["spec.c: Invalid value: 1: small"]);
}

/// The expectations are the results of apiextensions-apiserver's `Compile` of 1.36.
#[test]
fn rule_whose_mistake_is_visible_in_the_definition_is_rejected() {
    for (rule, column, why) in [
        ("self.?nothing.orValue(true)", 5, "undefined field 'nothing'"),
        ("self.?s.?x.orValue(true)", 8, "type 'string' does not support field selection"),
        ("self.l.?a.hasValue()", 7, "type 'list(string)' does not support field selection"),
        ("optional.of(self).nothing.hasValue()", 18, "undefined field 'nothing'"),
        ("[1,'a'].size() > 0", 4, "expected type 'int' but found 'string'"),
        ("[1,dyn('a')].size() > 0", 7, "expected type 'int' but found 'dyn'"),
        ("[null, 'a'].size() > 0", 8, "expected type 'null' but found 'string'"),
        ("{'a':1,'b':'c'}.size() > 0", 12, "expected type 'int' but found 'string'"),
        ("{'a':1,2:3}.size() > 0", 8, "expected type 'string' but found 'int'"),
        ("self.l.all(x, [x, 1].size() > 0)", 19, "expected type 'string' but found 'int'"),
        ("self.s.matches('[')", 16, "invalid matches argument"),
        ("self.s.matches('(?=a)')", 16, "invalid matches argument"),
        ("matches('[', self.s)", 9, "invalid matches argument"),
        ("duration('7d') > duration('1s')", 10, "invalid duration argument"),
        ("timestamp('x') > timestamp('2020-01-01T00:00:00Z')", 11, "invalid timestamp argument"),
        ("timestamp(99999999999999) > timestamp(0)", 11, "invalid timestamp argument"),
    ] {
        let dots = ".".repeat(column - 1);
        rejected(rule, &format!("compilation failed: ERROR: <input>:1:{column}: {why}\n | {rule}\n | {dots}^"));
    }
    for rule in ["matches(self.s, '[')", "self.s.find('[') == ''", "self.s.findAll('[').size() > 1"] {
        rejected(rule, "program instantiation failed: error parsing regexp: missing closing ]: `[`");
    }
}

#[test]
fn rule_of_another_type_than_bool_is_rejected() {
    for rule in ["dyn(self).x", "self.q", "self.b ? true : dyn(self.b)", "self.?b", "[][0]", "{}['a']", "self.i"] {
        rejected(rule, "cel expression must evaluate to a bool");
    }
    for rule in [
        "self.?b.orValue(true)",
        "optional.none().orValue(true)",
        "[true][0]",
        "optional.of(self.l)[0].orValue('x') == 'x'",
        "self.?l[0].orValue('a') == 'a'",
        "{'a': true}.?a.orValue(false)",
        "[].all(x, x)",
        "[1, 2].map(x, x > 1)[0]",
        "[[], ['a']].size() > 0 && [optional.none(), optional.of(1)].size() > 0",
        "[dyn(1), dyn('a')].size() > 0 && '%s %d'.format(['a', 1]) == 'x'",
        "self.q == 5 && (self.b ? self.q : dyn('a')) == 5",
    ] {
        assert_eq!(definition(&root(spec(rule))), [""; 0], "{rule}");
    }
    for (message, is_valid) in [
        ("self.s", true),
        ("'a' + dyn(self.s)", true),
        ("optional.none().orValue('a')", true),
        ("self.q", false),
        ("dyn('a')", false),
        ("self.b ? 'a' : dyn('b')", false),
    ] {
        let mut schema = spec("true");
        schema["x-kubernetes-validations"] = json!([{"rule": "true", "messageExpression": message}]);
        let errors = definition(&root(schema));
        let is_refused = errors.iter().any(|error| error.ends_with("messageExpression must evaluate to a string"));
        assert_eq!((errors.is_empty(), is_refused), (is_valid, !is_valid), "{message}: {errors:?}");
    }
}

#[test]
fn rule_within_the_estimate_of_kubernetes_is_accepted() {
    let check = |items: Value, count: u64, rule: &str| {
        let mut items = items;
        items["x-kubernetes-validations"] = json!([{"rule": rule}]);
        definition(&root(json!({"type": "array", "maxItems": count, "items": items})))
    };
    let int_or_string = json!({"x-kubernetes-int-or-string": true, "maxLength": 16});
    assert_eq!(check(int_or_string, 1_000, "self.matches('^[0-9]+%$')"), [""; 0], "the length is limited");
    let unlimited = json!({"x-kubernetes-int-or-string": true});
    assert_ne!(check(unlimited, 1_000, "self.matches('^[0-9]+%$')"), [""; 0], "the length is not limited");
    let text = json!({"type": "string", "maxLength": 200_000});
    assert_eq!(
        check(text.clone(), 100, "self.matches('abcd')"),
        [""; 0],
        "four characters cost one step per character"
    );
    assert_ne!(check(text, 100, "self.matches('abcde')"), [""; 0], "five characters cost two");
}

#[test]
fn too_costly_rule_is_rejected() {
    let rule = "self.l.all(x, self.l.all(y, self.l.all(z, x + y + z != '')))";
    let mut schema = spec(rule);
    schema["properties"]["l"] = json!({"type": "array", "items": {"type": "string"}});
    let errors = definition(&root(schema));
    let place = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule";
    let detail = "exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";
    assert_eq!(errors[0], format!("{place}: Forbidden: estimated rule cost {detail}"));
    assert_eq!(
        errors[2],
        format!(
            "spec.validation.openAPIV3Schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema {detail}"
        )
    );
}

#[test]
fn string_of_unknown_size_makes_an_expression_too_costly() {
    let check = |rule: Value, at: &str, what: &str| {
        let mut schema = spec("true");
        schema["x-kubernetes-validations"] = json!([rule]);
        let errors = definition(&root(schema));
        if what.is_empty() {
            assert_eq!(errors, [""; 0], "{rule}");
            return;
        }
        let place = format!("spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].{at}");
        let text = format!("{place}: Forbidden: estimated {what} cost exceeds budget by factor of more than 100x");
        assert!(errors[0].starts_with(&text), "{rule}: {errors:?}");
    };
    // Each expectation is the response of kube-apiserver 1.36.2.
    for (message, what) in [
        ("string(self.l.size())", ""),
        ("'is ' + self.s", ""),
        ("'%d'.format([self.i])", ""),
        ("'is ' + string(self.l.size())", "messageExpression"),
        ("'is ' + string(self.i)", "messageExpression"),
        ("'is ' + string(self.s)", "messageExpression"),
        ("'is ' + '%d'.format([self.i])", "messageExpression"),
    ] {
        check(json!({"rule": "self.i > 3", "messageExpression": message}), "messageExpression", what);
    }
    for (rule, what) in [
        ("string(self.i) == 'a'", ""),
        ("string(self.i) + 'x' != 'y'", "rule"),
        ("string(self.i).matches('a')", "rule"),
        ("('a' + string(self.i)).size() < 3", "rule"),
    ] {
        check(json!({"rule": rule}), "rule", what);
    }
}

#[test]
fn evaluation_ends_at_its_cost_limit() {
    let mut schema = spec("self.n.all(x, self.n.all(y, self.n.all(z, x + y + z > 0)))");
    schema["properties"]["n"] = json!({"type": "array", "items": {"type": "integer"}});
    let object = json!({"spec": {"n": vec![1; 2000]}});
    let errors = texts(Schema::parse(&root(schema)).expect("a schema").validate(&object));
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0]
            .contains("'operation cancelled: actual cost limit exceeded': no further validation rules will be run"),
        "{errors:?}"
    );
}

#[test]
fn rule_error_has_its_message_reason_and_field_path() {
    let check = |rule: Value, expected: &str| {
        let mut schema = spec("true");
        schema["x-kubernetes-validations"] = json!([rule]);
        let schema = root(schema);
        assert_eq!(definition(&schema), [""; 0]);
        let errors = texts(Schema::parse(&schema).expect("a schema").validate(&json!({"spec": {"i": 1, "s": "x"}})));
        assert_eq!(errors, [expected]);
    };
    check(json!({"rule": "self.i > 3", "message": "too small"}), "spec: Invalid value: too small");
    check(json!({"rule": "self.i > 3", "messageExpression": "string(self.i)"}), "spec: Invalid value: 1");
    check(
        json!({"rule": "self.i > 3", "messageExpression": "self.l[0]", "message": "else"}),
        "spec: Invalid value: else",
    );
    check(json!({"rule": "self.i > 3", "reason": "FieldValueForbidden", "message": "no"}), "spec: Forbidden: no");
    check(
        json!({"rule": "self.i > 3", "reason": "FieldValueRequired", "fieldPath": ".s", "message": "no"}),
        "spec.s: Required value: no",
    );
    check(json!({"rule": "self.i > 3", "fieldPath": ".i", "message": "no"}), "spec.i: Invalid value: no");
}

#[test]
fn rule_with_old_self_compares_with_the_old_value() {
    let field = json!({"type": "object", "properties": {
        "a": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]},
        "b": {"type": "integer", "x-kubernetes-validations": [{"rule": "!oldSelf.hasValue() || self >= oldSelf.value()", "optionalOldSelf": true, "message": "only up"}]},
        "c": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 5", "message": "small"}]},
    }});
    let schema = root(field);
    assert_eq!(definition(&schema), [""; 0]);
    let schema = Schema::parse(&schema).expect("a schema");
    let check = |old: Option<Value>, new: Value, expected: &[&str]| {
        let new = json!({"spec": new});
        let errors = match old {
            Some(old) => schema.validate_update(&new, &json!({"spec": old})),
            None => schema.validate(&new),
        };
        assert_eq!(texts(errors), expected);
    };
    check(None, json!({"a": "x", "b": 1}), &[]);
    check(Some(json!({"a": "x"})), json!({"a": "y"}), &["spec.a: Invalid value: \"y\": immutable"]);
    check(Some(json!({})), json!({"a": "y"}), &[]);
    check(Some(json!({"b": 2})), json!({"b": 1}), &["spec.b: Invalid value: 1: only up"]);
    check(Some(json!({"b": 2})), json!({"b": 3}), &[]);
    check(None, json!({"c": 1}), &["spec.c: Invalid value: 1: small"]);
    check(Some(json!({"c": 1})), json!({"c": 1}), &[]);
    check(Some(json!({"c": 2})), json!({"c": 1}), &["spec.c: Invalid value: 1: small"]);
}

#[test]
fn rule_with_old_self_in_an_uncorrelatable_list_is_rejected() {
    let list = json!({"type": "array", "maxItems": 4, "items": {"type": "string", "maxLength": 8, "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}});
    let errors = definition(&root(list));
    assert_eq!(
        errors[0],
        "spec.validation.openAPIV3Schema.properties[spec].items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.openAPIV3Schema.properties[spec]"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any text is rejected, or is accepted and its evaluation ends.
    #[test]
    fn random_rule_text_never_panics(rule in "(self|oldSelf|x|1|'a'|\\[|\\]|\\(|\\)|\\{|\\}|\\.|,|\\?|:|\\+|-|\\*|/|%|&&|\\|\\||!|==|<|in|has|all|map|s|l|n|m|o| |\"|\\\\|true|null|1u|1.5|b'x'|\\?\\.|filter|exists|optMap|format|size){0,14}") {
        let schema = root(spec(&rule));
        let _ = definition(&schema);
        let schema = Schema::parse(&schema).expect("a schema");
        let object = json!({"spec": {"s": "a", "i": 1, "l": ["a"], "n": [1, 2], "m": {"a": "b"}, "o": {"x": 1}}});
        let _ = schema.validate(&object);
        let _ = schema.validate_update(&object, &object);
    }

    #[test]
    fn deeply_nested_rule_is_rejected(open in "[(\\[{!-]{1,3}", times in prop_oneof![1usize..3000, 55usize..70]) {
        let rule = format!("{}self.i == 1", open.repeat(times));
        // A few operators may form a valid rule; an opening bracket here is never closed.
        if open.contains(['(', '[', '{']) || open.len() * times > 200 {
            prop_assert!(!definition(&root(spec(&rule))).is_empty(), "a rule with endless nesting is rejected");
        }
        let chain = format!("1{} == 1", " + 1".repeat(times));
        let errors = definition(&root(spec(&chain)));
        // The limit is 64 levels, including the comparison, its last operand and the rule.
        prop_assert_eq!(errors.is_empty(), times <= 61, "a chain has a bound: {:?}", times);
    }
}

/// Fails after 60 s; an algorithm with quadratic time would take minutes.
fn within_bounds<T>(work: impl FnOnce() -> T) -> T {
    let start = std::time::Instant::now();
    let done = work();
    assert!(start.elapsed() < std::time::Duration::from_secs(60), "took {:?}", start.elapsed());
    done
}

#[test]
fn comparison_of_lists_is_charged_for_their_elements() {
    let lists = json!({"type": "array", "maxItems": 1, "items": {"type": "array", "items": {"type": "integer"}}});
    let numbers = json!({"type": "array", "maxItems": 5000, "items": {"type": "integer"}});
    let schema = |rule: &str| {
        root(json!({
            "type": "object",
            "properties": {"a": lists, "b": lists, "n": numbers},
            "x-kubernetes-validations": [{"rule": rule}]
        }))
    };
    let big: Vec<usize> = (0..200_000).collect();
    let object = json!({"spec": {"a": [big], "b": [big], "n": vec![0; 5000]}});
    for rule in [
        "self.n.all(x, self.a == self.b)",
        "self.n.all(x, self.a[0] in self.b)",
        "self.n.all(x, '%s'.format([self.a]) != '')",
    ] {
        let schema = schema(rule);
        assert_eq!(definition(&schema), [""; 0]);
        let errors = within_bounds(|| texts(Schema::parse(&schema).expect("a schema").validate(&object)));
        assert!(errors[0].contains("actual cost limit exceeded"), "{rule}: {errors:?}");
    }
    let once = schema("self.a == self.b && self.a[0] in self.b");
    assert_eq!(texts(Schema::parse(&once).expect("a schema").validate(&object)), [""; 0]);
}

#[test]
fn size_of_long_string_is_charged_by_length() {
    let rule = "self.n.all(x, size(self.s) > 0 && self.s <= self.s)";
    let numbers = json!({"type": "array", "maxItems": 50_000, "items": {"type": "integer"}});
    let schema = root(json!({
        "type": "object",
        "properties": {"s": {"type": "string", "maxLength": 9}, "n": numbers},
        "x-kubernetes-validations": [{"rule": rule}]
    }));
    // This schema has no length limit; the one of the definition has, for its estimate.
    let mut unbound = schema.clone();
    unbound["properties"]["spec"]["properties"]["s"] = json!({"type": "string"});
    assert_eq!(definition(&schema), [""; 0]);
    let object = json!({"spec": {"s": "ä".repeat(1_000_000), "n": vec![0; 50_000]}});
    let errors = within_bounds(|| texts(Schema::parse(&unbound).expect("a schema").validate(&object)));
    assert!(errors[0].contains("actual cost limit exceeded"), "{errors:?}");
}

#[test]
fn unchanged_list_is_compared_once_for_all_items() {
    let item = json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == ''"}]});
    let schema = root(json!({"type": "object", "properties": {"l": {"type": "array", "items": item}}}));
    let object = json!({"spec": {"l": vec!["0123456789"; 100_000]}});
    let schema = Schema::parse(&schema).expect("a schema");
    let errors = within_bounds(|| texts(schema.validate_update(&object, &object)));
    assert_eq!(errors, [""; 0]);
    let mut changed = object.clone();
    changed["spec"]["l"][0] = json!("");
    assert_eq!(texts(schema.validate_update(&changed, &object)).len(), 1001);
}

#[test]
fn query_of_long_url_is_parsed_within_the_time_limit() {
    let query: String = (0..200_000).map(|n| format!("{n}&")).collect();
    let schema = root(json!({
        "type": "object",
        "properties": {"s": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "size(url(self.s).getQuery()) == 200000"}]
    }));
    let object = json!({"spec": {"s": format!("https://a/?{query}")}});
    let schema = Schema::parse(&schema).expect("a schema");
    assert_eq!(within_bounds(|| texts(schema.validate(&object))), [""; 0]);
}

#[test]
fn definition_with_an_unknown_time_zone_in_a_rule_is_rejected() {
    let errors = definition(&root(spec("self.t.getHours('Europe/Berlin') == 1")));
    assert!(errors[0].contains("unknown time zone Europe/Berlin"), "{errors:?}");
    for zone in ["UTC", "+02:00", "-08:00", "05:30"] {
        assert_eq!(definition(&root(spec(&format!("self.t.getHours('{zone}') == 1")))), [""; 0], "{zone}");
    }
}

#[test]
fn type_check_of_nested_loops_is_bounded() {
    let nested = |levels: usize| {
        let rule = format!("{}1{}.size() == 1", "[1].map(a, ".repeat(levels), ")".repeat(levels));
        definition(&root(spec(&rule)))
    };
    assert_eq!(nested(10), [""; 0], "ten loops inside each other are accepted");
    // Without the limit, this check would visit each inner node 2^20 times.
    let errors = nested(20);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("expression needs more than 1000000 type checks"), "{errors:?}");
}
