//! The built-in kinds of Kubernetes, as pure descriptions without I/O: [`Kind`] and [`KINDS`].
//!
//! ```text
//!  body ─▶ normalize ─▶ defaults ─▶ prepare_for_create │ prepare_for_update ─▶ validate ─▶ stored object ─▶ printer
//! ```
//!
//! One file describes one kind: names, selectable fields, subresources, defaults, validation, the fields that a write
//! can change, and Table columns. A new kind is a file and one line in [`KINDS`].
//!
//! Validation runs in this order:
//!
//! | write | functions of the kind |
//! |---|---|
//! | create | `validate` |
//! | update | `validate`, `validate_update`, `validate_transition` |
//! | update of `status` | `validate_status`, `validate_transition` |
//! | update of `ephemeralcontainers` or `resize` | `validate`, `validate_transition` |
//! | update of another subresource | `validate_transition` |
//!
//! Texts and order of errors are those of kube-apiserver. If it is not certain that kube-apiserver rejects an object,
//! the object is accepted.
//!
//! Source: `pkg/apis/*`, `pkg/registry/*` and `pkg/printers/internalversion` of Kubernetes v1.36.
//!
//! # Example
//! ```
//! let deployment = listwatch_kinds::find("apps", "Deployment").expect("a built-in kind");
//! assert_eq!(deployment.plural, "deployments");
//! assert!(deployment.namespaced && deployment.generation);
//! ```
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod certificate_request;
pub mod conditions;
pub mod defaults;
pub mod former_versions;
mod kind;
mod strategy;
mod subresource;
#[cfg(test)]
mod testing;
pub mod versions;
#[cfg(test)]
mod warnings_tests;
mod write_scope;

pub use crate::admissionregistration::webhooks::validate_client_config as validate_webhook_client_config;
pub use kind::{CreateContext, Field, Kind, StoredText, Unenforced, UnenforcedPart, UpdateContext};
pub use listwatch_kind_warnings::Warnings;
pub use listwatch_pod_rules::quality_of_service;
pub use strategy::{
    Deletion, SecondVersionStrategy, Strategy, WriteRules, before_create, before_update, completes_deletion,
};
pub use subresource::{ForeignKind, Subresource};
pub use write_scope::{MetadataScope, ResourceWrites, WriteScope};

/// The error for a port that is already allocated to another service.
pub const PORT_TAKEN: &str = "provided port is already allocated";

/// Declares the modules of the kinds and [`KINDS`]. Modules after `+` are shared by the kinds of a group.
/// `cargo xtask fix` formats these files; `cargo fmt` alone does not find them.
macro_rules! kinds {
    ($($group:ident { $($kind:ident,)* } $(+ { $($shared:ident,)* })?)*) => {
        $(mod $group { $(pub(crate) mod $kind;)* $($(pub(crate) mod $shared;)*)? })*

        /// All built-in kinds but `CustomResourceDefinition`, in the order in which discovery shows their groups.
        pub static KINDS: &[&Kind] = &[$($(&$group::$kind::KIND,)*)*];
    };
}

kinds! {
    core {
        config_map,
        endpoints,
        event,
        limit_range,
        namespace,
        node,
        persistent_volume_claim,
        persistent_volume,
        pod,
        pod_template,
        replication_controller,
        resource_quota,
        secret,
        service_account,
        service,
        binding,
        component_status,
    } + {
        data,
        event_v1,
        ports,
        service_update,
        volumes,
    }
    apiregistration {
        api_service,
    }
    apps {
        controller_revision,
        daemon_set,
        deployment,
        replica_set,
        stateful_set,
    } + {
        replica_counts,
        selector_and_template,
        update_strategy,
    }
    autoscaling {
        horizontal_pod_autoscaler,
    } + {
        horizontal_pod_autoscaler_v1,
    }
    batch {
        cron_job,
        job,
    } + {
        completion_indexes,
        cron_schedule,
        job_status,
    }
    certificates {
        certificate_signing_request,
    }
    networking {
        ingress_class,
        ingress,
        ip_address,
        network_policy,
        service_cidr,
    } + {
        load_balancer,
        references,
    }
    policy {
        pod_disruption_budget,
    }
    rbac {
        cluster_role_binding,
        cluster_role,
        role_binding,
        role,
    } + {
        bindings,
        rules,
    }
    storage {
        csi_driver,
        csi_node,
        csi_storage_capacity,
        storage_class,
        volume_attachment,
        volume_attributes_class,
    } + {
        class_parameters,
    }
    storagemigration {
        storage_version_migration,
    }
    admissionregistration {
        mutating_admission_policy,
        mutating_admission_policy_binding,
        mutating_webhook_configuration,
        validating_admission_policy,
        validating_admission_policy_binding,
        validating_webhook_configuration,
    } + {
        bindings,
        expressions,
        match_rules,
        policies,
        webhooks,
    }
    scheduling {
        priority_class,
    }
    coordination {
        lease,
    }
    node {
        runtime_class,
    }
    discovery {
        endpoint_slice,
    }
    resource {
        device_class,
        resource_claim,
        resource_claim_template,
        resource_slice,
    } + {
        claim_spec,
        devices,
    }
    flowcontrol {
        flow_schema,
        priority_level_configuration,
    } + {
        status,
    }
    authentication {
        self_subject_review,
        token_review,
    }
    authorization {
        local_subject_access_review,
        self_subject_access_review,
        self_subject_rules_review,
        subject_access_review,
    }
}

/// Finds a built-in kind by its group and name. `CustomResourceDefinition` is in `listwatch-apiextensions`.
pub fn find(group: &str, kind: &str) -> Option<&'static Kind> {
    KINDS.iter().copied().find(|found| found.kind == kind && found.group == group)
}
