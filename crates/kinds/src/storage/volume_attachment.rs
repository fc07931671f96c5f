//! VolumeAttachment (`storage.k8s.io/v1`): the request to attach a volume to a node.
//!
//! Source: `pkg/registry/storage/volumeattachment/strategy.go`, `ValidateVolumeAttachment` in
//! `pkg/apis/storage/validation`. A status write is validated as the whole object.

use listwatch_json::{Value, json};
use listwatch_schema::Path;
use listwatch_validation::formats::{IMMUTABLE, driver_name, json as go_json, same, subdomain};
use listwatch_validation::{Errors, Object, child, given, number, text};

use crate::core::persistent_volume::validate_inline_volume;
use crate::storage::class_parameters::byte_count;
use crate::{Kind, Subresource, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    subresources: &[Subresource::Status],
    initial_status: || Some(json!({"attached": false})),
    validate,
    validate_status: validate,
    status_write: WriteScope::STATUS_ONLY,
    printer: &PRINTER,
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment")
};

/// The largest size of the names and values of the attachment metadata, in bytes.
const ATTACHMENT_METADATA_BYTES_MAX: usize = 256 * 1024;

/// The largest size of the message of a failed attachment, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

fn validate(attachment: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(attachment, "spec");
    let at = Path::root("spec");
    driver_name(text(spec, "attacher"), &at.child("attacher"), errors);
    let (source, source_at) = (child(spec, "source"), at.child("source"));
    let volume = given(source, "persistentVolumeName").and_then(Value::as_str);
    let volume_at = source_at.child("persistentVolumeName");
    match (given(source, "inlineVolumeSpec").and_then(Value::as_object), volume) {
        (None, None) => {
            errors.required(&source_at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        }
        (Some(_), Some(_)) => {
            errors.forbidden(&source_at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        }
        (None, Some("")) => errors.required(&volume_at, "must specify non empty persistentVolumeName"),
        (None, Some(_)) => {}
        (Some(inline), None) => validate_inline_volume(inline, &source_at.child("inlineVolumeSpec"), errors),
    }
    subdomain(text(spec, "nodeName"), &at.child("nodeName"), errors);
    validate_status_fields(attachment, errors);
    if let Some(volume) = volume {
        subdomain(volume, &volume_at, errors);
    }
    if let Some(old) = old
        && !same(attachment.get("spec"), old.get("spec"))
    {
        // Upstream prints its internal type, without JSON names. An inline volume keeps its JSON names here.
        let shown = format!(
            "{{\"Attacher\":{},\"Source\":{{\"PersistentVolumeName\":{},\"InlineVolumeSpec\":{}}},\"NodeName\":{}}}",
            Value::from(text(spec, "attacher")),
            go_json(given(source, "persistentVolumeName")),
            go_json(given(source, "inlineVolumeSpec")),
            Value::from(text(spec, "nodeName")),
        );
        errors.invalid_value(&at, shown, IMMUTABLE);
    }
}

fn validate_status_fields(attachment: &Object, errors: &mut Errors) {
    let status = child(attachment, "status");
    let at = Path::root("status");
    if byte_count(child(status, "attachmentMetadata")) > ATTACHMENT_METADATA_BYTES_MAX {
        errors.too_long(&at.child("attachmentMetadata"), ATTACHMENT_METADATA_BYTES_MAX);
    }
    for name in ["attachError", "detachError"] {
        let (failure, at) = (child(status, name), at.child(name));
        if text(failure, "message").len() > MESSAGE_BYTES_MAX {
            // The limit in upstream's error differs from the limit that upstream applies.
            errors.too_long(&at.child("message"), ATTACHMENT_METADATA_BYTES_MAX);
        }
        if let Some(code) = number(failure, "errorCode").filter(|code| *code < 0) {
            errors.invalid_value(&at.child("errorCode"), code, "must be between 0 and 2147483647, inclusive");
        }
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::naming("Attacher", "The driver that attaches.", 0),
        Column::text("PV", "The volume."),
        Column::text("Node", "The node that it is attached to."),
        Column::boolean("Attached", "Whether it is attached yet."),
        AGE,
    ],
    cells: |attachment| {
        let spec = attachment.spec();
        vec![
            attachment.name().into(),
            spec.get("attacher").string().into(),
            spec.at("source.persistentVolumeName").string().into(),
            spec.get("nodeName").string().into(),
            attachment.at("status.attached").bool().unwrap_or(false).into(),
            attachment.age().into(),
        ]
    },
};
