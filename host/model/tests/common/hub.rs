//! Writes hub directories, right and wrong ones.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// A directory in the making; anything may be changed before [`Hub::write`] to tell lies.
pub(crate) struct Hub {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) data: Vec<u8>,
}

impl Hub {
    /// A directory's config.json and model.safetensors.
    pub(crate) fn open(path: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(path.join("config.json")).unwrap()).unwrap();
        let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let shape = view.shape().iter().map(|&n| n as u64).collect();
            (name, Tensor { dtype: view.dtype().to_string(), shape, data: view.data().to_vec() })
        });
        Self { config, tensors: tensors.collect() }
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.get_mut(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(crate) fn remove(&mut self, name: &str) -> Tensor {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(crate) fn add(&mut self, name: &str, dtype: &str, shape: &[u64], data: Vec<u8>) {
        self.tensors.insert(name.to_owned(), Tensor { dtype: dtype.to_owned(), shape: shape.to_vec(), data });
    }

    /// The quantization section of the config.
    pub(crate) fn quantization(&mut self) -> &mut Value {
        &mut self.config["quantization_config"]
    }

    pub(crate) fn write(&self, directory: &Path) {
        self.write_config(directory);
        std::fs::write(directory.join("model.safetensors"), file(self.tensors.iter())).unwrap();
    }

    pub(crate) fn write_config(&self, directory: &Path) {
        std::fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
    }

    /// As files with an index; `shards` gives a tensor's files, of which the index names the first.
    pub(crate) fn write_shards(&self, directory: &Path, shards: impl Fn(&str) -> Vec<&'static str>) {
        self.write_config(directory);
        let mut files: BTreeMap<&str, Vec<(&String, &Tensor)>> = BTreeMap::new();
        let mut map = serde_json::Map::new();
        for (name, tensor) in &self.tensors {
            let all = shards(name);
            map.insert(name.clone(), all[0].into());
            all.iter().for_each(|shard| files.entry(shard).or_default().push((name, tensor)));
        }
        for (name, tensors) in files {
            std::fs::write(directory.join(name), file(tensors.into_iter())).unwrap();
        }
        let index = json!({ "metadata": { "total_size": 0 }, "weight_map": map });
        std::fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

/// A safetensors file of these tensors, whatever they claim.
fn file<'a>(tensors: impl Iterator<Item = (&'a String, &'a Tensor)>) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let offsets = [data.len(), data.len() + tensor.data.len()];
        header.insert(name.clone(), json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets }));
        data.extend(&tensor.data);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// A safetensors file with this header and data.
pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}
