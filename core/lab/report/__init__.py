"""The report of an ablation: one page for people, pictures for papers, tables for everything else."""
