//! Which path leads where, and what it asks of the caller. Two routers for two listeners: nothing of the admin listener can be
//! reached through the public one.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

use crate::access::{self, Access};
use crate::state::Api;
use crate::{admin, browser, guard, openai, system, trials};

/// A router under construction.
struct Routes {
    api: Api,
    router: Router<Api>,
    /// Every path with its access, in the order of registration.
    listed: Vec<(String, Access)>,
}

impl Routes {
    fn new(api: &Api) -> Self {
        Self { api: api.clone(), router: Router::new(), listed: Vec::new() }
    }

    /// The only way to register a handler.
    fn at(mut self, path: &str, access: Access, handler: MethodRouter<Api>) -> Self {
        let handler =
            handler.fallback(system::method_not_allowed).layer(from_fn_with_state((self.api.clone(), access), access::check));
        self.router = self.router.route(path, handler);
        self.listed.push((path.to_owned(), access));
        self
    }

    /// A path of the OpenAI API: clients put a slash behind it, and leave `/v1` out of their base URL.
    fn v1(self, path: &str, access: Access, handler: MethodRouter<Api>) -> Self {
        ["/v1", ""].into_iter().fold(self, |routes, prefix| {
            let path = format!("{prefix}{path}");
            routes.at(&path, access, handler.clone()).at(&format!("{path}/"), access, handler.clone())
        })
    }

    /// Lets web pages of the allowed origins use what was registered so far.
    fn for_pages(mut self) -> Self {
        let origins = &self.api.options.allowed_origins;
        if !origins.is_empty() {
            self.router = self.router.layer(browser::cors(origins));
        }
        self
    }

    fn build(self) -> Router {
        tracing::debug!(routes = ?self.listed, "routes");
        let guarded = from_fn_with_state(self.api.clone(), guard::guard);
        self.router.fallback(system::not_found).layer(guarded).with_state(self.api)
    }
}

fn public_routes(api: &Api) -> Routes {
    Routes::new(api)
        .v1("/chat/completions", Access::Tenant, post(openai::chat))
        .v1("/completions", Access::Tenant, post(openai::completion))
        .v1("/models", Access::Tenant, get(openai::models))
        .at("/v1/models/{*id}", Access::Tenant, get(openai::model))
        .at("/models/{*id}", Access::Tenant, get(openai::model))
        .at("/live", Access::Open, get(system::live))
        .at("/ready", Access::Open, get(system::ready))
        .at("/health", Access::Open, get(system::ready))
        .at("/metrics", Access::Open, get(system::metrics))
        .at("/version", Access::Open, get(system::version))
}

fn admin_routes(api: &Api) -> Routes {
    let routes = Routes::new(api)
        .at("/admin/status", Access::Admin, get(admin::status))
        .at("/admin/pools", Access::Admin, get(admin::pools))
        .at("/admin/pools/{pool}/readmit", Access::Admin, post(admin::readmit))
        .at("/admin/policies", Access::Admin, get(admin::policies))
        .at("/admin/policies/{kind}", Access::Admin, post(admin::replace))
        .at("/admin/policies/{kind}/rollback", Access::Admin, post(admin::roll_back))
        .at("/admin/policies/{kind}/builtin", Access::Admin, post(admin::return_to_builtin))
        .at("/admin/policies/{kind}/shadow", Access::Admin, get(trials::look).post(trials::begin).delete(trials::give_up))
        .at("/admin/policies/{kind}/activate", Access::Admin, post(trials::activate))
        .at("/live", Access::Open, get(system::live))
        .at("/ready", Access::Open, get(system::ready))
        .at("/metrics", Access::Open, get(system::metrics));
    #[cfg(feature = "fault-injection")]
    let routes = routes.at("/admin/faults/steal-page", Access::Admin, post(admin::steal_page));
    routes
}

/// What clients reach.
pub(crate) fn public(api: &Api) -> Router {
    public_routes(api).for_pages().build()
}

/// What operators reach.
pub(crate) fn admin(api: &Api) -> Router {
    admin_routes(api).build()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::ApiOptions;

    /// What needs no key, on either listener.
    const OPEN: [&str; 5] = ["/live", "/ready", "/health", "/metrics", "/version"];

    fn api() -> Api {
        Api::new(ApiOptions {
            max_body_bytes: 1,
            max_header_bytes: 8192,
            header_timeout: Duration::from_secs(1),
            body_timeout: Duration::from_secs(1),
            write_timeout: Duration::from_secs(1),
            max_connections: 1,
            max_admin_connections: 1,
            allowed_origins: Vec::new(),
            max_component_bytes: 1,
            admin_key: None,
        })
        .unwrap()
    }

    #[test]
    fn only_probes_are_open_and_nothing_of_the_operators_is_public() {
        for (path, access) in public_routes(&api()).listed {
            let expected = if OPEN.contains(&path.as_str()) { Access::Open } else { Access::Tenant };
            assert_eq!(access, expected, "{path}");
            assert!(!path.contains("admin"), "{path}");
        }
        for (path, access) in admin_routes(&api()).listed {
            let expected = if OPEN.contains(&path.as_str()) { Access::Open } else { Access::Admin };
            assert_eq!(access, expected, "{path}");
        }
    }
}
