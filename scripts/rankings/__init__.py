"""What bench_ranking.py is made of: a benchmark of rankings, in units that are kept one by one.

``cell_space`` has the space and its data, ``cell_networks`` which architectures are alike and the
forty that are drawn, ``variants`` the table of supernets, ``unit_keys`` what defines a unit,
``kept_units`` the files of records, ``unit_work`` how a unit is carried out, ``unit_queue`` the
order, the hours and the processes. No page or picture is made here but in ``ranking_figures``
and ``ranking_pictures``.
"""
