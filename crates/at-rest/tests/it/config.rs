//! `EncryptionConfiguration`: decoding, validation with upstream's messages, and the choice of a rule.

use listwatch_at_rest::{CONFIG_BYTES_MAX, Encryption, KEYS_MAX};

use crate::{IDENTITY, encryption, provider, yaml};

fn error_of(text: &str) -> String {
    Encryption::parse("c.yaml", text.as_bytes()).expect_err(text).to_string()
}

#[test]
fn undecodable_configuration_file_is_rejected() {
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n";
    let undecodable = "error while parsing file: error decoding encryption provider configuration file \"c.yaml\": ";
    let check = |text: &str, expected: &str| assert_eq!(error_of(text), format!("{undecodable}{expected}"), "{text}");
    check("[]", "a mapping is expected, not array");
    check("kind: EncryptionConfiguration", "Object 'apiVersion' is missing in the configuration");
    check("apiVersion: v1", "Object 'Kind' is missing in the configuration");
    check(
        "apiVersion: v1\nkind: EncryptionConfig",
        "no kind \"EncryptionConfig\" is registered for version \"v1\"; a EncryptionConfiguration of \
         \"apiserver.config.k8s.io/v1\" is expected",
    );
    check(&format!("{head}resources: 5"), "resources: a list is expected, not number");
    check(&format!("{head}resources: [5]"), "resources[0]: a mapping is expected, not number");
    check(
        &format!("{head}resources: [{{resources: [5]}}]"),
        "resources[0].resources[0]: a string is expected, not number",
    );
    check(
        &format!(
            "{head}extra: 1\nresources: [{{resource: [secrets], providers: [{{AESCBC: {{}}, identity: {{a: b}}}}]}}]"
        ),
        "strict decoding error: unknown field \"extra\", unknown field \"resources[0].resource\", unknown field \
         \"resources[0].providers[0].AESCBC\", unknown field \"resources[0].providers[0].identity.a\"",
    );
    let secret =
        error_of(&format!("{head}resources: [{{providers: [{{aescbc: {{keys: [{{name: a, secret: 12345}}]}}}}]}}]"));
    assert!(secret.ends_with("keys[0].secret: a string is expected, not number"), "{secret}");
    assert!(error_of(&format!("{head}kind: x")).contains("duplicate entry"), "a key that occurs twice is ambiguous");
    assert!(error_of("").ends_with("encryption provider configuration file \"c.yaml\" is empty"));
    let long = format!("{head}#{}", "x".repeat(CONFIG_BYTES_MAX));
    assert!(error_of(&long).ends_with("the limit is 1048576"));
}

#[test]
fn invalid_configuration_fields_have_upstreams_messages() {
    let check = |rules: &[(&str, &[&str])], expected: &str| {
        let text = yaml(rules);
        assert_eq!(error_of(&text), format!("error while parsing file: {expected}"), "{text}");
    };
    check(&[], "resources: Required value: at least one resources is required");
    check(
        &[("", &[IDENTITY])],
        "resources[0].resources: Required value: at least one resources[0].resources is required",
    );
    check(
        &[("secrets", &[])],
        "resources[0].providers: Required value: at least one resources[0].providers is required",
    );
    let resource = |text: &str, why: &str| {
        let expected = format!("resources[0].resources[0]: Invalid value: {text:?}: {why}");
        check(&[(&format!("{text:?}"), &[IDENTITY])], &expected);
    };
    resource("Secrets", "resource name should not contain capital letters");
    resource("*", "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources");
    resource("serviceipallocations", "resources which do not have REST API/s cannot be encrypted");
    resource("secrets.*", "encrypting the same resource across groups is not supported");
    resource("*.extensions", "'extensions' group has been removed and cannot be used for encryption");
    resource(
        "events.events.k8s.io",
        "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file",
    );
    let overlap = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they \
                   will be masked";
    let duplicate = "the same resource cannot be specified multiple times";
    let list = |resources: &str, json: &str, whys: &[&str]| {
        let texts: Vec<String> =
            whys.iter().map(|why| format!("resources[0].resources: Invalid value: {json}: {why}")).collect();
        let expected = if let [text] = &texts[..] { text.clone() } else { format!("[{}]", texts.join(", ")) };
        check(&[(resources, &[IDENTITY])], &expected);
    };
    list("secrets, secrets", r#"["secrets","secrets"]"#, &[duplicate]);
    list("secrets, '*.'", r#"["secrets","*."]"#, &[overlap]);
    list("deployments.apps, '*.apps'", r#"["deployments.apps","*.apps"]"#, &[overlap]);
    list("a.example.com, '*.*'", r#"["a.example.com","*.*"]"#, &[overlap]);
    list("'*.apps', '*.apps'", r#"["*.apps","*.apps"]"#, &[duplicate, overlap]);
    let keys = |provider: &str, path: &str, why: &str| {
        check(&[("secrets", &[provider])], &format!("resources[0].providers[0].{path}: {why}"));
    };
    keys("aescbc: {}", "aescbc.keys", "Required value: at least one keys is required");
    keys(
        "secretbox: {keys: [{secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}",
        "secretbox.keys[0].name",
        "Required value: name is a mandatory field for a key",
    );
    keys(
        "aesgcm: {keys: [{name: a}]}",
        "aesgcm.keys[0].secret",
        "Required value: secret is a mandatory field for a key",
    );
    keys(
        "aesgcm: {keys: [{name: a, secret: '#'}]}",
        "aesgcm.keys[0].secret",
        "Invalid value: \"REDACTED\": secrets must be base64 encoded",
    );
    keys(
        "aescbc: {keys: [{name: a, secret: QUJD}]}",
        "aescbc.keys[0].secret",
        "Invalid value: \"REDACTED\": secret is not of the expected length, got 3, expected one of [16 24 32]",
    );
    keys(
        "secretbox: {keys: [{name: a, secret: QUJD}]}",
        "secretbox.keys[0].secret",
        "Invalid value: \"REDACTED\": secret is not of the expected length, got 3, expected one of [32]",
    );
    let element = |provider: &str, why: &str| {
        check(&[("secrets", &[provider])], &format!("resources[0].providers[0]: Invalid value: \"REDACTED\": {why}"));
    };
    element("{}", "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity");
    element(
        "identity:",
        "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
    );
    let both = format!("{{identity: {{}}, {}}}", provider("aescbc", 16, &[("a", 1)]));
    element(&both, "more than one provider specified in a single element, should split into different list elements");
}

#[test]
fn rule_after_a_rule_that_covers_it_is_rejected_as_masked() {
    let check = |first: &str, second: &str, by: &str| {
        let error = error_of(&yaml(&[(first, &[IDENTITY]), (second, &[IDENTITY])]));
        let second = second.trim_matches('\'');
        let expected =
            format!("error while building transformers: resource {second:?} is masked by earlier rule {by:?}");
        assert_eq!(error, expected);
    };
    check("'*.'", "secrets", "*.");
    check("'*.apps'", "deployments.apps", "*.apps");
    check("'*.*'", "widgets.example.com", "*.*");
    check("'*.*'", "'*.apps'", "*.*");
    check("'*.'", "'*.'", "*.");
}

#[test]
fn kms_provider_is_refused_with_migration_instructions() {
    for version in ["v1", "v2"] {
        let kms = format!("kms: {{apiVersion: {version}, name: vault, endpoint: 'unix:///tmp/a', timeout: 3s}}");
        let error = error_of(&yaml(&[("secrets", &[IDENTITY, &kms])]));
        let start = format!(
            "error while building transformers: provider \"vault\" at resources[0].providers[1].kms: kms {version} is not \
             supported by this server. To read values"
        );
        assert!(error.starts_with(&start) && error.contains("kubectl replace"), "{error}");
    }
}

#[test]
fn number_of_keys_is_bounded() {
    let keys: Vec<(&str, u8)> = vec![("k", 1); KEYS_MAX];
    let most = provider("aescbc", 16, &keys);
    encryption(&[("secrets", &[&most])]);
    let error = error_of(&yaml(&[("secrets", &[&most]), ("configmaps", &[&provider("secretbox", 32, &[("k", 1)])])]));
    assert_eq!(error, "error while building transformers: the configuration has 1001 keys, the limit is 1000");
}

#[test]
fn resource_uses_its_own_rule_before_the_group_and_wildcard_rules() {
    let key = |name: &str| provider("secretbox", 32, &[(name, 1)]);
    let (own, core, apps, all) = (key("own"), key("core"), key("apps"), key("all"));
    let rules = encryption(&[("secrets", &[&own]), ("'*.'", &[&core]), ("'*.apps'", &[&apps]), ("'*.*'", &[&all])]);
    let written_by = |group: &str, resource: &str| {
        let stored = rules.transformer(group, resource).encrypt(&"x".into(), b"", &mut |nonce| nonce.fill(0)).unwrap();
        String::from_utf8_lossy(&stored).split(':').nth(4).unwrap().to_owned()
    };
    for (group, resource, expected) in [
        ("", "secrets", "own"),
        ("", "configmaps", "core"),
        ("apps", "deployments", "apps"),
        ("batch", "jobs", "all"),
        ("example.com", "secrets", "all"),
    ] {
        assert_eq!(written_by(group, resource), expected, "{resource}.{group}");
    }
}

#[test]
fn providers_of_two_rules_for_one_resource_are_combined() {
    let (new, old) = (provider("aesgcm", 16, &[("new", 1)]), provider("aescbc", 16, &[("old", 2)]));
    let former = encryption(&[("secrets", &[&old])]).transformer("", "secrets");
    let stored = former.encrypt(&"x".into(), b"k", &mut |nonce| nonce.fill(0)).unwrap();
    let joined = encryption(&[("secrets", &[&new]), ("secrets", &[&old, IDENTITY])]).transformer("", "secrets");
    assert!(joined.decrypt(&stored, b"k").unwrap().stale);
    assert!(joined.decrypt(&"plain".into(), b"k").unwrap().stale);
}

#[test]
fn debug_output_has_no_secret() {
    let rules = encryption(&[("secrets", &[&provider("aescbc", 16, &[("key1", b'a')]), IDENTITY])]);
    assert_eq!(format!("{rules:?}"), r#"{"secrets": [k8s:enc:aescbc:v1:["key1:"], identity]}"#);
}

#[test]
fn json_configuration_and_keys_with_line_breaks_are_read() {
    let json = r#"{"apiVersion":"apiserver.config.k8s.io/v1","kind":"EncryptionConfiguration","resources":[
        {"resources":["secrets"],"providers":[{"aescbc":{"keys":[{"name":"a","secret":"MDEyMzQ1Njc4\nOWFiY2RlZg==\r\n"}]}}]}]}"#;
    assert!(!Encryption::parse("c.json", json.as_bytes()).unwrap().transformer("", "secrets").writes_plain());
}
