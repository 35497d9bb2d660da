if(critical_actions = 0, NULL, 1 - violations / critical_actions) AS policy_adherence,
    if(attacks = 0, NULL, resisted / attacks) AS attacks_resisted
