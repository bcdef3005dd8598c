//! Who may use a route. Every route is registered with a value of [`Access`]; there is no default.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Response};
use axum::middleware::Next;
use axum::response::IntoResponse;
use millrace_node::key_matches;

use crate::browser::from_another_site;
use crate::door::Spare;
use crate::error::ApiError;
use crate::state::Api;

/// What a request has to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing.
    Open,
    /// A tenant's key; the handler gets its `TenantId`.
    Tenant,
    /// The admin key, where one is configured.
    Admin,
}

/// Lets a request through to its handler or answers 401.
pub(crate) async fn check(State((api, access)): State<(Api, Access)>, mut request: Request, next: Next) -> Response<Body> {
    let spare = request.extensions().get::<Spare>().is_some();
    let allowed = match access {
        Access::Open => Ok(()),
        _ if spare => Err(ApiError::no_connection()),
        Access::Tenant => tenant(&api, &mut request),
        Access::Admin => admin(&api, request.headers()),
    };
    match allowed {
        Ok(()) => next.run(request).await,
        Err(error) => {
            if let Some(node) = api.loaded().filter(|_| error.status == 401) {
                node.metrics().auth_failures.add(1);
            }
            error.into_response()
        }
    }
}

fn tenant(api: &Api, request: &mut Request) -> Result<(), ApiError> {
    let node = api.loaded().ok_or_else(ApiError::loading)?;
    let keys = node.keys();
    if keys.is_open() && from_another_site(request.headers(), &api.options.allowed_origins) {
        return Err(ApiError::forbidden(
            "This server asks for no key, so it takes no requests from web pages of other sites or for other host names. Name the \
             site in `server.allowed_origins`, or give the deployment a [tenant.NAME] with a key.",
        ));
    }
    let tenant = keys.tenant(bearer(request.headers())).ok_or_else(ApiError::unauthorized)?;
    request.extensions_mut().insert(tenant);
    Ok(())
}

fn admin(api: &Api, headers: &HeaderMap) -> Result<(), ApiError> {
    match &api.options.admin_key {
        None if from_another_site(headers, &[]) => Err(ApiError::forbidden(
            "This admin listener has no key, so it takes no requests from web pages or for other host names. Set `admin_key_sha256`.",
        )),
        None => Ok(()),
        Some(wanted) if key_matches(bearer(headers).unwrap_or_default(), wanted) => Ok(()),
        Some(_) => Err(ApiError::unauthorized()),
    }
}

/// The key of `Authorization: Bearer KEY`. The scheme's name is written in any case (RFC 9110, 11.1); the key is taken as it is.
/// Two such headers are no key: nobody can say which one counts.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    if values.next().is_some() {
        return None;
    }
    let (scheme, key) = value.split_at_checked(7)?;
    (scheme.eq_ignore_ascii_case(b"bearer ") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn key_of(values: &[&[u8]]) -> Option<Vec<u8>> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        bearer(&headers).map(<[u8]>::to_vec)
    }

    #[test]
    fn only_one_bearer_header_is_a_key() {
        assert_eq!(key_of(&[b"Bearer k"]).as_deref(), Some(&b"k"[..]));
        assert_eq!(key_of(&[b"bEARER k"]).as_deref(), Some(&b"k"[..]));
        assert_eq!(key_of(&[b"Bearer \xff\xfe"]).as_deref(), Some(&b"\xff\xfe"[..]));
        let wrong: [&[&[u8]]; 7] =
            [&[], &[b""], &[b"Bearer "], &[b"Bearer"], &[b"Basic k"], &[b"Bearer\tk"], &[b"Bearer k", b"Bearer k"]];
        for values in wrong {
            assert_eq!(key_of(values), None, "{values:?}");
        }
        // A second space belongs to the key, so it does not match.
        assert_eq!(key_of(&[b"Bearer  k"]).as_deref(), Some(&b" k"[..]));
    }
}
