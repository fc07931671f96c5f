//! ServiceAccount (`v1`): an identity for programs.
//!
//! Source: `pkg/registry/core/serviceaccount/strategy.go`.

use listwatch_json::Value;
use listwatch_validation::Object;

use crate::{Kind, Subresource};
use listwatch_printers::NAME_AND_AGE;

pub(crate) static KIND: Kind = Kind {
    short_names: &["sa"],
    subresources: &[Subresource::Token],
    prepare_for_create: |account, _| clean_secret_references(account),
    prepare_for_update: |account, _, _| clean_secret_references(account),
    warnings: listwatch_kind_warnings::small::of_service_account,
    printer: &NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "serviceaccounts", "ServiceAccount")
};

/// Removes all members but the name from references to secrets (`cleanSecretReferences`).
fn clean_secret_references(account: &mut Object) {
    let Some(Value::Array(secrets)) = account.get_mut("secrets") else { return };
    for secret in secrets.iter_mut().filter_map(Value::as_object_mut) {
        secret.retain(|name, _| name == "name");
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;
    use crate::testing::map;

    #[test]
    fn references_to_secrets_keep_only_the_name() {
        let mut account =
            map(json!({"secrets": [{"name": "a", "namespace": "n", "uid": "u", "kind": "Secret"}, {"kind": "x"}],
            "imagePullSecrets": [{"name": "b"}]}));
        clean_secret_references(&mut account);
        let expected = json!({"secrets": [{"name": "a"}, {}], "imagePullSecrets": [{"name": "b"}]});
        assert_eq!(Value::Object(account), expected);
    }
}
