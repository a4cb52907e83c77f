"""What serving brings."""

from fairlead.base.rooms import Doctor, Room, Schema, Table, Verb

ROOM = Room(
    verbs=(
        Verb("serve", "", "Bundles for closed sites, proof that they call nobody, an endpoint.", 170),
        Verb("serve bundle", "fairlead.cli.serve:bundle"),
        Verb("serve verify", "fairlead.cli.serve:verify"),
        Verb("serve manifests", "fairlead.cli.serve_manifests:manifests"),
        Verb("serve run", "fairlead.cli.serve_run:run"),
    ),
    schemas=(
        Schema("serve-manifest", "the manifest of a bundle, fairlead-bundle.json", "fairlead.serve.record:Bundle"),
        Schema(
            "serve-proof",
            "what an offline proof saw, proof.json in its run folder",
            "fairlead.serve.proof.record:Record",
        ),
    ),
    tables=(Table("serve", "fairlead.serve.table:Serve"),),
    limits=("fairlead.serve.table:limits",),
    doctor=(
        Doctor(
            "aiohttp", "the endpoints of `serve run` and `logs serve`", extra="serve", modules=("aiohttp", "tokenizers")
        ),
        Doctor(
            "transformers-serve",
            "an engine for `serve run` where there is no vLLM",
            extra="engine",
            modules=("transformers", "accelerate", "fastapi", "uvicorn", "openai"),
        ),
        Doctor("uvloop", "half the processor time of a streamed answer", extra="serve", modules=("uvloop",)),
        Doctor("packaging", "wheels within bundles", extra="serve", modules=("packaging",)),
        Doctor("cryptography", "signatures of bundles", extra="serve", modules=("cryptography",)),
        Doctor(
            "skopeo",
            "an image as a base for bundles, and bundles into registries",
            "apt install skopeo",
            programs=("skopeo",),
        ),
        Doctor("umoci", "an image of a bundle as a folder", "apt install umoci", programs=("umoci",)),
        Doctor(
            "docker-registry",
            "bundles through a real registry, in tests",
            "apt install docker-registry",
            programs=("docker-registry",),
        ),
    ),
)
