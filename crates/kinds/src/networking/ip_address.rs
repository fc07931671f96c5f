//! IPAddress (`networking.k8s.io/v1`): an allocated address and the object that has it.
//!
//! Source: `pkg/registry/networking/ipaddress/strategy.go`, `ValidateIPAddress` in `pkg/apis/networking/validation`.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::formats::{IMMUTABLE, json as go_json, path_segment, same, subdomain};
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object, child, given, text};

use crate::Kind;
use crate::networking::references::validate_required_segment;
use listwatch_printers::Printer;
use listwatch_printers::text::NONE;
use listwatch_printers::{AGE, Cell, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["ip"],
    names: NameRule::Address,
    validate,
    printer: &PRINTER,
    ..Kind::cluster("networking.k8s.io", "v1", "ipaddresses", "IPAddress")
};

fn validate(address: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(address, "spec");
    let spec_at = Path::root("spec");
    let at = spec_at.child("parentRef");
    match given(spec, "parentRef").and_then(Value::as_object) {
        None => errors.required(&at, ""),
        Some(parent) => {
            if !text(parent, "group").is_empty() {
                subdomain(text(parent, "group"), &at.child("group"), errors);
            }
            for name in ["resource", "name"] {
                validate_required_segment(parent, name, &at, errors);
            }
            if !text(parent, "namespace").is_empty() {
                path_segment(text(parent, "namespace"), &at.child("namespace"), errors);
            }
        }
    }
    if let Some(old) = old
        && !same(spec.get("parentRef"), child(old, "spec").get("parentRef"))
    {
        let shown = given(spec, "parentRef").and_then(Value::as_object).map(|parent| {
            // Upstream prints its internal type, without JSON names.
            listwatch_json::json!({"Group": text(parent, "group"), "Resource": text(parent, "resource"),
                "Namespace": text(parent, "namespace"), "Name": text(parent, "name")})
        });
        errors.invalid_value(&at, go_json(shown.as_ref()), IMMUTABLE);
    }
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("ParentRef", "The object that has the address."), AGE],
    cells: |address| {
        let parent = address.at("spec.parentRef");
        let parent_text = if parent.exists() {
            let [group, resource, namespace, name] =
                ["group", "resource", "namespace", "name"].map(|key| parent.get(key).string());
            let resource = if group.is_empty() { resource } else { format!("{resource}.{group}") };
            let namespace = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
            format!("{}{namespace}/{name}", resource.to_lowercase())
        } else {
            NONE.to_owned()
        };
        let cells: [Cell; 3] = [address.name().into(), parent_text.into(), address.age().into()];
        cells.into()
    },
};
