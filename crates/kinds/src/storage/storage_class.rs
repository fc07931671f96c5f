//! StorageClass (`storage.k8s.io/v1`): the provisioner and parameters of dynamically provisioned volumes.
//!
//! Source: `pkg/registry/storage/storageclass/strategy.go`, `ValidateStorageClass` in `pkg/apis/storage/validation`.

use std::collections::{BTreeSet, HashMap};

use listwatch_schema::Path;
use listwatch_validation::field_rules::{one_of, required_one_of};
use listwatch_validation::formats::{IMMUTABLE, is_full, json as go_json, qualified_name, same};
use listwatch_validation::{Errors, Object, items, objects, text};

use crate::defaults::Default::Text;
use crate::defaults::Defaults;
use crate::kind::StoredText::Always;
use crate::storage::class_parameters::{validate_driver, validate_parameters};
use crate::{Kind, Unenforced, UnenforcedPart};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["sc"],
    defaults: &DEFAULTS,
    stored_texts: &[Always(r#""reclaimPolicy":""#), Always(r#""volumeBindingMode":""#)],
    validate,
    warnings: listwatch_kind_warnings::storage::of_class,
    printer: &PRINTER,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Annotation("storageclass.kubernetes.io/is-default-class"),
        consequence: "claims without a class do not get it as their default",
    }),
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "storageclasses", "StorageClass")
};

static DEFAULTS: Defaults = Defaults(&[("reclaimPolicy", Text("Delete")), ("volumeBindingMode", Text("Immediate"))]);

fn validate(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    validate_driver(class, "provisioner", errors);
    validate_parameters(class, true, errors);
    one_of(class, "reclaimPolicy", &["Delete", "Retain"], &Path::NIL, errors);
    required_one_of(class, "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], &Path::NIL, errors);
    validate_topologies(class, errors);
    let Some(old) = old else { return };
    for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        if !same(class.get(name), old.get(name)) {
            errors.invalid_value(&Path::root(name), go_json(class.get(name)), IMMUTABLE);
        }
    }
}

fn validate_topologies(class: &Object, errors: &mut Errors) {
    let list_at = Path::root("allowedTopologies");
    let terms = items(class, "allowedTopologies");
    // Upstream compares each term with all earlier terms, and with one empty term for each term of the list.
    let mut seen: HashMap<Vec<(String, BTreeSet<&str>)>, usize> = HashMap::new();
    for (index, term) in objects(class, "allowedTopologies") {
        if is_full(errors) {
            return;
        }
        let at = list_at.index(index);
        let expressions_at = at.child("matchLabelExpressions");
        let mut expressions: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for (index, requirement) in objects(term, "matchLabelExpressions") {
            let at = expressions_at.index(index);
            let values_at = at.child("values");
            if items(requirement, "values").is_empty() {
                errors.required(&values_at, "");
            }
            let mut values = BTreeSet::new();
            for (index, value) in items(requirement, "values").iter().enumerate() {
                let value = value.as_str().unwrap_or_default();
                if !values.insert(value) {
                    errors.duplicate(&values_at.index(index), value);
                }
            }
            let key = text(requirement, "key");
            qualified_name(key, &at.child("key"), errors);
            if expressions.insert(key, values).is_some() {
                errors.duplicate(&at.child("key"), key);
            }
        }
        let mut term: Vec<_> = expressions.into_iter().map(|(key, values)| (key.to_owned(), values)).collect();
        term.sort_unstable();
        let empties = if term.is_empty() { terms.len() } else { 0 };
        let times = seen.entry(term).or_default();
        for _ in 0..(*times + empties) {
            if is_full(errors) {
                return;
            }
            errors.duplicate(&expressions_at, "");
        }
        *times += 1;
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Provisioner", "Who makes the volumes."),
        Column::text("ReclaimPolicy", "What happens to volumes when their claim goes."),
        Column::text("VolumeBindingMode", "When volumes are made and bound."),
        Column::text("AllowVolumeExpansion", "Whether claims may grow."),
        AGE,
    ],
    cells: |class| {
        let default =
            ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
                .into_iter()
                .any(|annotation| class.annotation(annotation).is("true"));
        vec![
            format!("{}{}", class.name(), if default { " (default)" } else { "" }).into(),
            class.get("provisioner").string().into(),
            class.get("reclaimPolicy").string_or("Delete").into(),
            class.get("volumeBindingMode").string_or("Immediate").into(),
            class.get("allowVolumeExpansion").bool().unwrap_or(false).into(),
            class.age().into(),
        ]
    },
};
