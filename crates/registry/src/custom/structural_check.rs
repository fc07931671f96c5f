//! [`StructuralCheck`]: whether the schemas of a definition are structural, which the condition `NonStructuralSchema`
//! reports.
//!
//! ```text
//!  Unneeded ──flag or condition──▶ Pending ──schemas_checked──▶ Done ──the status has the result──▶ Done, written
//! ```
//!
//! Source: `apiextensions-apiserver/pkg/controller/nonstructuralschema/nonstructuralschema_controller.go`.
//! kube-apiserver checks all definitions. This server checks those that preserve unknown fields and those that have the
//! condition: all other schemas were structural when they were written.

use listwatch_apiextensions::{Condition, Definition, NON_STRUCTURAL_SCHEMA};

/// The state of the check of one generation of a definition.
#[derive(Clone, Debug)]
pub(super) enum StructuralCheck {
    /// The schemas need no check.
    Unneeded,
    /// The result is not known yet.
    Pending,
    /// The schemas were checked.
    Done {
        /// The condition for the status; `None` if the schemas are structural.
        condition: Option<Condition>,
        /// Whether the status had the result once. The result is then not written again, so that servers of different
        /// versions do not replace each other's messages forever (`lastSeenGeneration`).
        is_written: bool,
    },
}

impl StructuralCheck {
    /// Returns the state for a definition that was received. `known` is the known state of the same generation.
    pub(super) fn of(definition: &Definition, known: Option<StructuralCheck>) -> Self {
        let stored = definition.condition(NON_STRUCTURAL_SCHEMA);
        match known {
            Some(StructuralCheck::Done { condition, is_written }) => {
                let is_written = is_written || stored == condition.as_ref();
                StructuralCheck::Done { condition, is_written }
            }
            _ if definition.spec.preserve_unknown_fields || stored.is_some() => StructuralCheck::Pending,
            _ => StructuralCheck::Unneeded,
        }
    }

    /// Returns the state after a check.
    pub(super) fn done(definition: &Definition, condition: Option<Condition>) -> Self {
        StructuralCheck::of(definition, Some(StructuralCheck::Done { condition, is_written: false }))
    }

    /// Whether the schemas must be checked.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, StructuralCheck::Pending)
    }

    /// Returns the condition that the status must have.
    pub(super) fn condition(&self) -> Option<&Condition> {
        match self {
            StructuralCheck::Done { condition, is_written: false } => condition.as_ref(),
            _ => None,
        }
    }

    /// Whether the status has a condition that does not apply.
    pub(super) fn is_obsolete(&self, definition: &Definition) -> bool {
        matches!(self, StructuralCheck::Done { condition: None, is_written: false })
            && definition.condition(NON_STRUCTURAL_SCHEMA).is_some()
    }
}
