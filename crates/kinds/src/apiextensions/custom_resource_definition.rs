//! `CustomResourceDefinition (apiextensions.k8s.io/v1)`. Its rules are in [`crate::definitions`].

use listwatch_validation::Errors;

use crate::definitions::{strategy, validation};
use crate::{Kind, Subresource};

pub(crate) static KIND: Kind = Kind {
    short_names: &["crd", "crds"],
    storage_prefix: "apiextensions.k8s.io/customresourcedefinitions",
    unconditional_update: false,
    generation: true,
    categories: &["api-extensions"],
    subresources: &[Subresource::Status],
    keeps_nulls: true,
    normalize: |definition| {
        strategy::check_types(definition)?;
        strategy::apply_defaults(definition);
        Ok(())
    },
    prepare_for_create: |definition, _| strategy::prepare_for_create(definition),
    prepare_for_update: |definition, _, context| {
        if context.subresource.is_none() {
            strategy::prepare_for_update(definition);
        }
    },
    validate: |definition, old, errors: &mut Errors| {
        if old.is_none() {
            errors.extend(validation::validate(definition));
        }
    },
    validate_update: |new, old, errors| errors.extend(validation::validate_update(new, old)),
    validate_status: |definition, _, errors| errors.extend(validation::validate_status(definition)),
    warnings: strategy::warnings,
    begin_deletion: strategy::begin_deletion,
    ..Kind::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
};
