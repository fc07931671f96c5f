//! Extensions of a server in its process: admission plugins, webhooks and converters.

use std::sync::Arc;

use listwatch_admission::{MutatingAdmission, ValidatingAdmission};
use listwatch_json::Value;
use listwatch_registry::ConversionHandler;
use listwatch_webhook_admission::WebhookHandler;

use super::Builder;

impl Builder {
    /// Adds a mutating admission plugin after the built-in ones.
    #[must_use]
    pub fn mutating_admission(mut self, plugin: impl MutatingAdmission + 'static) -> Self {
        self.mutating_admission.push(Arc::new(plugin));
        self
    }

    /// Adds a validating admission plugin after the built-in ones.
    #[must_use]
    pub fn validating_admission(mut self, plugin: impl ValidatingAdmission + 'static) -> Self {
        self.validating_admission.push(Arc::new(plugin));
        self
    }

    /// Adds mutating webhooks that a function in this process implements. `configuration` is a
    /// MutatingWebhookConfiguration without `clientConfig`. The server does not store the configuration. All webhooks
    /// are called in the order of the names of their configurations. docs/extending.md has an example.
    #[must_use]
    pub fn mutating_webhook(mut self, configuration: Value, handler: impl WebhookHandler + 'static) -> Self {
        self.mutating_webhooks.push((configuration, Arc::new(handler)));
        self
    }

    /// Adds validating webhooks that a function in this process implements. `configuration` is a
    /// ValidatingWebhookConfiguration without `clientConfig`, which the server does not store.
    #[must_use]
    pub fn validating_webhook(mut self, configuration: Value, handler: impl WebhookHandler + 'static) -> Self {
        self.validating_webhooks.push((configuration, Arc::new(handler)));
        self
    }

    /// Adds a function in this process that converts between the versions of a custom resource. The function replaces
    /// the webhook if the definition `name`, e.g. `widgets.example.com`, has the conversion strategy `Webhook`.
    /// docs/extending.md has an example.
    #[must_use]
    pub fn converter(mut self, name: impl Into<String>, handler: impl ConversionHandler + 'static) -> Self {
        self.converters.push((name.into(), Arc::new(handler)));
        self
    }
}
