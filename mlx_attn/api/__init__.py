"""The laboratory from Python, for scripts and notebooks: load, train, resume, compare.

    import mlx_attn

    model = mlx_attn.load("runs/tiny-standard")
    print(model.generate("One rainy day", temp=0.7))
    model.attention("One rainy day, patient Hugo was")  # in a notebook: the map of every head
    model.matrices(layer=0).S  # S_h of every head, (H, C, C)

    training = mlx_attn.train("runs/mine", preset="nano", variant="merged", steps=200)
    for event in training:
        ...
    mlx_attn.resume("runs/mine", steps=400).run()
    mlx_attn.compare("standard", "merged", steps=200, seeds=3, out="runs/merged")

Nothing is printed: training and comparing yield or hand over events. Results show themselves:
`print` gives a line, rich a table, a notebook HTML with figures. The choices of a user's own
files are known after `load_plugins`, or with `plugins=`. `use_device("cpu")`, before anything else,
computes on the processor of a machine that has a GPU.
"""
