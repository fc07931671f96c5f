//! Builds the OpenAPI 3.0 document of one group version.

use std::collections::BTreeMap;

use listwatch_json::{Map, Value, json};
use listwatch_k8s_types::Id;

use super::paths::{self, Body, Model, Operation, PARAMETERS, Path};
use super::schema::{self, KIND_EXTENSION, Models, Version};
use crate::version::KUBERNETES_VERSION;
use listwatch_registry::Resource;

/// The media types of responses.
const PRODUCED: &[&str] = &["application/json", "application/yaml"];

/// Builds the document of the resources of one group version.
pub(super) fn document(resources: &[&Resource]) -> Value {
    let mut group_versions: Vec<(String, String)> =
        resources.iter().map(|resource| (resource.group.clone(), resource.version.clone())).collect();
    group_versions.dedup();
    let mut models = Models::new(Version::Three, group_versions);
    let mut path_items = BTreeMap::new();
    for resource in resources {
        for path in paths::of(resource) {
            let item = path_item(resource, &path, &mut models);
            path_items.insert(path.path, item);
        }
    }
    let parameters: Map =
        PARAMETERS.iter().map(|parameter| (parameter.name.to_owned(), query_parameter(parameter))).collect();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": path_items,
        "components": {
            "parameters": parameters,
            "schemas": models.finish(),
            "securitySchemes": security_schemes(),
        },
        "security": [{"BearerToken": []}],
    })
}

/// The member `securitySchemes` of every document.
pub(super) fn security_schemes() -> Value {
    json!({
        "BearerToken": {
            "description": "Bearer token authentication",
            "type": "apiKey",
            "name": "authorization",
            "in": "header",
        },
    })
}

fn query_parameter(parameter: &paths::Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "schema": {"type": parameter.type_, "uniqueItems": true},
    })
}

fn parameter_reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/parameters/{name}")})
}

fn path_item(resource: &Resource, path: &Path, models: &mut Models) -> Value {
    let mut item = Map::new();
    for operation in &path.operations {
        item.insert(operation.method.to_owned(), operation_value(resource, operation, models));
    }
    let mut parameters: Vec<Value> = path
        .parameters()
        .map(|name| {
            let description = match name {
                "namespace" => "the namespace of the object".to_owned(),
                _ => format!("the name of the {}", resource.kind),
            };
            let schema = json!({"type": "string", "uniqueItems": true});
            json!({"name": name, "in": "path", "required": true, "description": description, "schema": schema})
        })
        .collect();
    parameters.push(parameter_reference("pretty"));
    item.insert("parameters", Value::Array(parameters));
    Value::Object(item)
}

fn operation_value(resource: &Resource, operation: &Operation, models: &mut Models) -> Value {
    let object = models.of_kind(&operation.kind, resource);
    let content = |model: &str, media_types: &[&str]| {
        let schema = Version::Three.reference(model);
        let content: Map =
            media_types.iter().map(|media_type| ((*media_type).to_owned(), json!({ "schema": schema }))).collect();
        Value::Object(content)
    };
    let (answer, produced): (String, &[&str]) = match operation.answer {
        Model::Object => (object.clone(), PRODUCED),
        Model::List => {
            (models.of_list(resource), &["application/json", "application/json;stream=watch", "application/yaml"])
        }
        Model::Status => (models.of_message(Id::MetaStatus), PRODUCED),
    };
    let responses: Map = operation
        .codes
        .iter()
        .map(|code| ((*code).to_owned(), paths::code_description(code)))
        .map(|(code, description)| (code, json!({"description": description, "content": content(&answer, produced)})))
        .chain([("401".to_owned(), json!({"description": "Unauthorized"}))])
        .collect();
    // kubectl looks for this parameter in the operation or below #/parameters, which version 3 does not have.
    let parameters: Vec<Value> = operation
        .query
        .iter()
        .map(|name| match PARAMETERS.iter().find(|parameter| parameter.name == *name) {
            Some(parameter) if *name == "fieldValidation" => query_parameter(parameter),
            _ => parameter_reference(name),
        })
        .collect();
    let mut value = json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [paths::tag(resource)],
        "responses": responses,
        "x-kubernetes-action": operation.action,
        KIND_EXTENSION: schema::kind_value(&operation.kind),
    });
    // Empty members are omitted: see `spec3`.
    if !parameters.is_empty() {
        value["parameters"] = Value::Array(parameters);
    }
    let body = match operation.body {
        Body::None => None,
        Body::Object => Some((object, true)),
        Body::Patch => Some((models.of_patch(), true)),
        Body::DeleteOptions => Some((models.of_message(Id::MetaDeleteOptions), false)),
    };
    if let Some((model, required)) = body {
        value["requestBody"] = json!({"content": content(&model, operation.consumes)});
        if required {
            value["requestBody"]["required"] = json!(true);
        }
    }
    value
}
