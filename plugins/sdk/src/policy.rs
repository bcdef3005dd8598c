//! What every policy has: a configuration, the columns that it reads, and how it is made. Does not know what is decided.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::glue::lifecycle::Info;

/// A policy, made once per instance. The host may rebuild an instance at any time: what must outlive it belongs in
/// [`crate::state`].
pub trait Policy: Sized {
    /// Read from the policy's TOML table; `#[serde(default, deny_unknown_fields)]` gives defaults and finds misspelt keys.
    type Config: DeserializeOwned;

    /// Column kinds that the policy reads; the host leaves out others. Empty: all.
    const WANTS: &'static [u32];

    /// Makes the policy, or tells every fault of the configuration, each a sentence that names the key.
    ///
    /// # Errors
    /// The faults of the configuration.
    fn new(config: Self::Config) -> Result<Self, Vec<String>>;
}

/// For a policy without configuration: no key is allowed.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoConfig {}

#[doc(hidden)]
pub fn init<P: Policy>(config: &str, name: &str, version: &str) -> Result<(P, Info), String> {
    let policy = make::<P>(config).map_err(|faults| faults.join("; "))?;
    // What tells the host's own packages from others says nothing about a policy.
    let name = name.strip_prefix("millrace-").unwrap_or(name);
    Ok((policy, Info { name: name.into(), version: version.into(), wants: P::WANTS.to_vec() }))
}

#[doc(hidden)]
pub fn check_config<P: Policy>(config: &str) -> Result<(), Vec<String>> {
    make::<P>(config).map(|_| ())
}

fn make<P: Policy>(config: &str) -> Result<P, Vec<String>> {
    let config = serde_json::from_str(config).map_err(|error| vec![error.to_string()])?;
    P::new(config)
}

/// The part of a component that all decisions share: one policy, made by `init`.
#[doc(hidden)]
#[macro_export]
macro_rules! policy_component {
    ($policy:ty) => {
        struct Component;

        ::std::thread_local! {
            static POLICY: ::std::cell::RefCell<Option<$policy>> = const { ::std::cell::RefCell::new(None) };
        }

        fn with_policy<R>(decide: impl FnOnce(&mut $policy) -> R) -> R {
            POLICY.with_borrow_mut(|policy| decide(policy.as_mut().expect("the host calls init first")))
        }

        impl $crate::glue::lifecycle::Guest for Component {
            fn init(config: String) -> Result<$crate::glue::lifecycle::Info, String> {
                let (policy, info) = $crate::glue::init::<$policy>(&config, env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))?;
                POLICY.set(Some(policy));
                Ok(info)
            }

            fn check_config(config: String) -> Result<(), Vec<String>> {
                $crate::glue::check_config::<$policy>(&config)
            }
        }
    };
}
