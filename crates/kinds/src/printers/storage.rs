//! Volumes, claims, and the drivers behind them.

use super::Printer;
use super::text::{NONE, UNSET, joined, or};
use crate::table::Json;
use crate::table::{AGE, Column, NAME};

pub(crate) static PERSISTENT_VOLUME: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Capacity", "How much the volume holds."),
        Column::text("Access Modes", "How the volume can be mounted."),
        Column::text("Reclaim Policy", "What happens to the volume when its claim goes."),
        Column::text("Status", "Whether the volume is bound."),
        Column::text("Claim", "The claim that the volume is bound to."),
        Column::text("StorageClass", "The class of the volume."),
        Column::text("VolumeAttributesClass", "The class of the volume's changeable attributes."),
        Column::text("Reason", "Why the volume is in its state."),
        AGE,
        Column::wide("VolumeMode", "Whether the volume is a file system or a block device."),
    ],
    cells: |volume| {
        let (spec, status) = (volume.spec(), volume.status());
        let claim = spec.get("claimRef");
        let claim = match claim.exists() {
            true => format!("{}/{}", claim.get("namespace").string(), claim.get("name").string()),
            false => String::new(),
        };
        let phase = status.get("phase").string_or("Pending");
        vec![
            volume.name().into(),
            spec.at("capacity.storage").scalar().unwrap_or_else(|| "0".to_owned()).into(),
            access_modes(spec.get("accessModes")).into(),
            spec.get("persistentVolumeReclaimPolicy").string_or("Retain").into(),
            if volume.is_being_deleted() { "Terminating".to_owned() } else { phase }.into(),
            claim.into(),
            class(volume.annotation(CLASS_ANNOTATION), spec).into(),
            spec.get("volumeAttributesClassName").text().map_or_else(|| UNSET.to_owned(), Into::into).into(),
            status.get("reason").string().into(),
            volume.age().into(),
            spec.get("volumeMode").string_or("Filesystem").into(),
        ]
    },
};

pub(crate) static PERSISTENT_VOLUME_CLAIM: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "Whether the claim is bound."),
        Column::text("Volume", "The volume that the claim is bound to."),
        Column::text("Capacity", "How much the volume holds."),
        Column::text("Access Modes", "How the volume can be mounted."),
        Column::text("StorageClass", "The class that was asked for."),
        Column::text("VolumeAttributesClass", "The class of the volume's changeable attributes."),
        AGE,
        Column::wide("VolumeMode", "Whether the volume is a file system or a block device."),
    ],
    cells: |claim| {
        let (spec, status) = (claim.spec(), claim.status());
        let volume = spec.get("volumeName").string();
        // Before there is a volume, what was asked for is no capacity.
        let (capacity, modes) = match volume.is_empty() {
            true => (String::new(), String::new()),
            false => (
                status.at("capacity.storage").scalar().unwrap_or_else(|| "0".to_owned()),
                access_modes(status.get("accessModes")),
            ),
        };
        let phase = status.get("phase").string_or("Pending");
        vec![
            claim.name().into(),
            if claim.is_being_deleted() { "Terminating".to_owned() } else { phase }.into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            class(claim.annotation(CLASS_ANNOTATION), spec).into(),
            spec.get("volumeAttributesClassName").text().map_or_else(|| UNSET.to_owned(), Into::into).into(),
            claim.age().into(),
            spec.get("volumeMode").string_or("Filesystem").into(),
        ]
    },
};

const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// The class of a volume or claim; the annotation of old days comes first.
fn class(annotation: Json<'_>, spec: Json<'_>) -> String {
    if annotation.exists() { annotation.string() } else { spec.get("storageClassName").string() }
}

fn access_modes(modes: Json<'_>) -> String {
    let modes = modes.items();
    [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")]
        .into_iter()
        .filter(|(mode, _)| modes.iter().any(|own| own.is(mode)))
        .map(|(_, short)| short)
        .collect::<Vec<_>>()
        .join(",")
}

pub(crate) static STORAGE_CLASS: Printer = Printer {
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

pub(crate) static VOLUME_ATTACHMENT: Printer = Printer {
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

pub(crate) static VOLUME_ATTRIBUTES_CLASS: Printer = Printer {
    columns: &[NAME, Column::text("DriverName", "The driver that the attributes are for."), AGE],
    cells: |class| vec![class.name().into(), class.get("driverName").string().into(), class.age().into()],
};

pub(crate) static CSI_DRIVER: Printer = Printer {
    columns: &[
        NAME,
        Column::boolean("AttachRequired", "Whether volumes are attached before they are mounted."),
        Column::boolean("PodInfoOnMount", "Whether the driver is told about the pod."),
        Column::boolean("StorageCapacity", "Whether the driver reports its capacity."),
        Column::text("TokenRequests", "The audiences of the tokens that the driver gets."),
        Column::boolean("RequiresRepublish", "Whether mounts are renewed from time to time."),
        Column::text("Modes", "The kinds of volumes that the driver has."),
        AGE,
    ],
    cells: |driver| {
        let spec = driver.spec();
        let flag = |key: &str, default: bool| spec.get(key).bool().unwrap_or(default);
        let tokens = spec.get("tokenRequests");
        let audiences: Vec<String> = tokens.items().into_iter().map(|token| token.get("audience").string()).collect();
        vec![
            driver.name().into(),
            flag("attachRequired", true).into(),
            flag("podInfoOnMount", false).into(),
            flag("storageCapacity", false).into(),
            if tokens.exists() { audiences.join(",") } else { UNSET.to_owned() }.into(),
            flag("requiresRepublish", false).into(),
            or(joined(spec.get("volumeLifecycleModes"), ","), NONE).into(),
            driver.age().into(),
        ]
    },
};

pub(crate) static CSI_NODE: Printer = Printer {
    columns: &[NAME, Column::integer("Drivers", "How many drivers the node has."), AGE],
    cells: |node| vec![node.name().into(), node.at("spec.drivers").len().into(), node.age().into()],
};

pub(crate) static CSI_STORAGE_CAPACITY: Printer = Printer {
    columns: &[
        NAME,
        Column::text("StorageClassName", "The class that has this capacity."),
        Column::text("Capacity", "How much is left."),
    ],
    cells: |capacity| {
        vec![
            capacity.name().into(),
            capacity.get("storageClassName").string().into(),
            capacity.get("capacity").scalar().unwrap_or_else(|| UNSET.to_owned()).into(),
        ]
    },
};
